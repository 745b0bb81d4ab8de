"""The Redis job store."""

from celery_sticky.stores.redis.jobs.store import RedisJobs

__all__ = ["RedisJobs"]
