"""The Kombu transport of `sticky+postgresql://`, `sticky+mysql://` and `sticky+sqlite:///`: a database as the broker.

Whoever publishes inserts a row, in its own thread. Whoever consumes has one thread, the pump, that claims messages,
deletes those that are acknowledged, and hands what it finds to the consumer's loop through a socket pair.
"""
