"""Claims and pins in Redis."""

from celery_sticky.stores.redis.placement.store import RedisPlacementStore

__all__ = ["RedisPlacementStore"]
