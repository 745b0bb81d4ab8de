"""The Kombu transport of `sticky+postgresql://`, `sticky+mysql://` and `sticky+sqlite:///`: a database as the broker.

A thread that publishes inserts a row itself. A connection that consumes has one thread more, the pump: it claims
messages, deletes those that are acknowledged, and hands what it finds to the consumer's loop through a socket pair.
"""
