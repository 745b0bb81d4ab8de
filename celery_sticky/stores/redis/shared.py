"""One client of a Redis server for the stores of many keyspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from celery_sticky.errors import StickyError
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.jobs import JobCounts, JobStore
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.redis.client import Server


class RedisShared(Server):
    """See `celery_sticky.stores.shared.SharedClient`. A store is imported when it is opened."""

    def store(self, keyspace: str) -> Store:
        """See `SharedClient.store`."""
        from celery_sticky.stores.redis.store import RedisStore

        return RedisStore(self, keyspace)

    def placement_store(self, keyspace: str) -> PlacementStore:
        """See `SharedClient.placement_store`."""
        from celery_sticky.stores.redis.placement import RedisPlacementStore

        return RedisPlacementStore(self, keyspace)

    def job_store(self, keyspace: str) -> JobStore:
        """See `SharedClient.job_store`."""
        from celery_sticky.stores.redis.jobs import RedisJobs

        return RedisJobs(self, keyspace)

    def read_each(self, stores: Sequence[Store]) -> Sequence[Reading | StickyError]:
        """See `SharedClient.read_each`."""
        from celery_sticky.stores.redis.store import RedisStore

        return RedisStore.each(cast(Sequence[RedisStore], stores), "read", RedisStore.reading)

    def enlisted_each(self, stores: Sequence[PlacementStore]) -> Sequence[Mapping[str, str] | StickyError]:
        """See `SharedClient.enlisted_each`."""
        from celery_sticky.stores.redis.placement import RedisPlacementStore

        return RedisPlacementStore.each(
            cast(Sequence[RedisPlacementStore], stores), "enlisted", RedisPlacementStore.names
        )

    def job_counts_each(self, stores: Sequence[JobStore]) -> Sequence[JobCounts | StickyError]:
        """See `SharedClient.job_counts_each`."""
        from celery_sticky.stores.redis.jobs.store import FIRST_PAGE, RedisJobs

        return RedisJobs.each(cast(Sequence[RedisJobs], stores), "counts", RedisJobs.counted, FIRST_PAGE)

    def watch(self, timeout: float) -> Mapping[Any, Sequence[Any]]:
        """See `SharedClient.watch`."""
        with self.asking({}):
            self.subscription.wait(self.wire, timeout)
            return self.subscription.take_all()

    def wake(self) -> None:
        """See `SharedClient.wake`."""
        self.wire.wake()
