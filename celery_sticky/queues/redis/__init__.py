"""The driver for Redis and Valkey (6.2 or later)."""

from celery_sticky.queues.redis.driver import RedisQueues
from celery_sticky.queues.redis.layout import Layout

__all__ = ["Layout", "RedisQueues"]
