"""The slot queues of PostgreSQL, MySQL, MariaDB and SQLite. No Celery transport publishes to them yet."""

from celery_sticky.queues.sql.driver import SqlQueues
from celery_sticky.queues.sql.publish import publish

__all__ = ["SqlQueues", "publish"]
