"""What runs inside a worker process, without Celery: the member thread and the courier thread."""
