"""One connection to a database for the stores of many keyspaces, and one poller for their signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_sticky.errors import StickyError
from celery_sticky.sql import Database
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.jobs import JobCounts, JobStore
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.shared import each
from celery_sticky.stores.sql.poller import Poller


class SqlShared:
    """See `celery_sticky.stores.shared.SharedClient`. A store is imported when it is opened.

    The keyspaces are asked one after the other: a database that does not answer the first is not asked again.
    """

    def __init__(self, database: Database, *, prefix: str) -> None:
        self._database, self._prefix = database, prefix
        self._poller = Poller(database)

    def store(self, keyspace: str) -> Store:
        """See `SharedClient.store`."""
        from celery_sticky.stores.sql.store import SqlStore

        return SqlStore(self._database, keyspace, prefix=self._prefix, poller=self._poller)

    def placement_store(self, keyspace: str) -> PlacementStore:
        """See `SharedClient.placement_store`."""
        from celery_sticky.stores.sql.placement import SqlPlacementStore

        return SqlPlacementStore(self._database, keyspace, prefix=self._prefix, poller=self._poller)

    def job_store(self, keyspace: str) -> JobStore:
        """See `SharedClient.job_store`."""
        from celery_sticky.stores.sql.jobs import SqlJobs

        return SqlJobs(self._database, keyspace, prefix=self._prefix, poller=self._poller)

    def read_each(self, stores: Sequence[Store]) -> Sequence[Reading | StickyError]:
        """See `SharedClient.read_each`."""
        return each(stores, lambda store: store.read())

    def enlisted_each(self, stores: Sequence[PlacementStore]) -> Sequence[Mapping[str, str] | StickyError]:
        """See `SharedClient.enlisted_each`."""
        return each(stores, lambda store: store.enlisted())

    def job_counts_each(self, stores: Sequence[JobStore]) -> Sequence[JobCounts | StickyError]:
        """See `SharedClient.job_counts_each`."""
        return each(stores, lambda store: store.counts())

    def watch(self, timeout: float) -> Mapping[Any, Sequence[Any]]:
        """See `SharedClient.watch`."""
        self._poller.wait(timeout)
        return self._poller.take_all()

    def wake(self) -> None:
        """See `SharedClient.wake`."""
        self._poller.wake()

    def close(self) -> None:
        """See `SharedClient.close`."""
        self._poller.close()
        self._database.close()
