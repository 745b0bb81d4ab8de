"""Loop 1: messages from the broker to the pool, and what became of them back to the broker."""
