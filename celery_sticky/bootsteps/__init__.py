"""How a Celery worker takes part: one step a file. Every touch of a Celery internal is in this room."""
