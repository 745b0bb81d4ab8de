"""How Celery runs one keyed message, and what a worker has for it: every touch of a Celery internal but the steps."""
