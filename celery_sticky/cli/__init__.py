"""`celery -A yourapp sticky …`: show who owns what, and repair what is broken. Each command has its own file."""
