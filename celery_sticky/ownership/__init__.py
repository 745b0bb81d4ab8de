"""The rules of ownership, pure: no I/O, no clock, no threads, no Celery."""
