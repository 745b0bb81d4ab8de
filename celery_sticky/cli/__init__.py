"""`celery -A <app> sticky ...`."""
