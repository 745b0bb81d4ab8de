"""Claims and pins in Redis."""

from celery_sticky.stores.redis.directory.store import RedisDirectory

__all__ = ["RedisDirectory"]
