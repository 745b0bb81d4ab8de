"""One client for the stores of many keyspaces in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

from celery_sticky.errors import StickyError, StoreUnavailable
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.in_process import Client
from celery_sticky.stores.jobs import JobCounts, JobStore
from celery_sticky.stores.memory.jobs import MemoryJobs, memory_job_server
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryStore, memory_server
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.shared import each

Opened = TypeVar("Opened", bound=Client[Any, Any])


class MemoryShared:
    """See `celery_sticky.stores.shared.SharedClient`."""

    def __init__(self, name: str, prefix: str) -> None:
        self._at = name, prefix
        self._stores: list[Client[Any, Any]] = []
        self._ready = Event()

    def store(self, keyspace: str) -> MemoryStore:
        """See `SharedClient.store`."""
        return self.opened(MemoryStore(memory_server(*self._at), keyspace))

    def placement_store(self, keyspace: str) -> MemoryPlacementStore:
        """See `SharedClient.placement_store`."""
        return self.opened(MemoryPlacementStore(memory_server(*self._at), keyspace))

    def job_store(self, keyspace: str) -> MemoryJobs:
        """See `SharedClient.job_store`."""
        return self.opened(MemoryJobs(memory_job_server(*self._at), keyspace))

    def opened(self, store: Opened) -> Opened:
        """Take in a store, whose signals end a `watch` from now on."""
        store.on_signal = self._ready.set
        self._stores.append(store)
        return store

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
        self._ready.wait(timeout)
        self._ready.clear()
        heard, broken = {}, None
        for store in [store for store in self._stores if store.has_signals]:
            try:
                heard[store] = store.watch(0.0)
            except StoreUnavailable as error:
                broken = error
        if broken is not None:
            raise broken
        return heard

    def wake(self) -> None:
        """See `SharedClient.wake`."""
        self._ready.set()

    def close(self) -> None:
        """See `SharedClient.close`."""
        for store in self._stores:
            store.close()
