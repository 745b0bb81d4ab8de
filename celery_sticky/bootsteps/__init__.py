"""The boot steps through which a Celery worker takes part, one step per file. Every use of Celery internals is here."""
