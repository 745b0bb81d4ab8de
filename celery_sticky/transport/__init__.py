"""Kombu transports of our own, for servers that Kombu does not reach well."""
