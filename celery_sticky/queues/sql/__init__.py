"""The slot queues of PostgreSQL, MySQL, MariaDB and SQLite. The transport `transport.sql` publishes to them."""

from celery_sticky.queues.sql.driver import SqlQueues
from celery_sticky.queues.sql.publish import publish

__all__ = ["SqlQueues", "publish"]
