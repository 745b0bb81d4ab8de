"""Stores in memory: the reference implementations of the contracts."""
