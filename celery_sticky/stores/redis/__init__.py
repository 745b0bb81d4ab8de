"""The Redis store."""

from celery_sticky.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
