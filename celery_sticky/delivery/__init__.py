"""Loop 1: carries messages from the broker to the pool, and their outcomes back to the broker."""
