"""One client of a server for the stores of many keyspaces, and what stands in if a driver has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore

AnyStore = Store | JobStore | PlacementStore


class SharedClient(Protocol):
    """A client for the stores of several keyspaces at one server. Used by one thread, except `wake`.

    The stores opened here are used by the same thread. They share their connections, so another keyspace costs none.
    Nothing is sent before the first verb of one of them.
    """

    def store(self, keyspace: str) -> Store:
        """Open the store of ownership of a keyspace."""

    def placement_store(self, keyspace: str) -> PlacementStore:
        """Open the store of claims and pins of a keyspace."""

    def job_store(self, keyspace: str) -> JobStore:
        """Open the store of jobs of a keyspace."""

    def watch(self, timeout: float) -> Mapping[Any, Sequence[Any]]:
        """Wait at most `timeout` seconds for signals; return them by the store that they are for.

        Called only while at least one store is subscribed; a store subscribes with its own first `watch`. Return
        nothing when the time is up, or `wake` was called.

        Raises:
            StoreUnavailable: the subscription broke; signals may have been lost. The next `watch` of each store
                subscribes again.
        """

    def wake(self) -> None:
        """Make the current `watch`, or the next one, return at once. Any thread may call this."""

    def close(self) -> None:
        """Close every connection. May be called twice."""


class OwnClient:
    """Looks like a shared client, over a driver whose stores each have a client of their own.

    It serves one keyspace: `watch` waits for the signals of the store that was opened first.
    """

    def __init__(
        self,
        store: Callable[[str], Store] | None = None,
        placement_store: Callable[[str], PlacementStore] | None = None,
        job_store: Callable[[str], JobStore] | None = None,
    ) -> None:
        self._open_store, self._open_placement_store, self._open_job_store = store, placement_store, job_store
        self._opened: list[AnyStore] = []

    def store(self, keyspace: str) -> Store:
        """See `SharedClient.store`."""
        assert self._open_store is not None
        store = self._open_store(keyspace)
        self._opened.append(store)
        return store

    def placement_store(self, keyspace: str) -> PlacementStore:
        """See `SharedClient.placement_store`."""
        assert self._open_placement_store is not None
        store = self._open_placement_store(keyspace)
        self._opened.append(store)
        return store

    def job_store(self, keyspace: str) -> JobStore:
        """See `SharedClient.job_store`."""
        assert self._open_job_store is not None
        store = self._open_job_store(keyspace)
        self._opened.append(store)
        return store

    def watch(self, timeout: float) -> Mapping[Any, Sequence[Any]]:
        """See `SharedClient.watch`."""
        store = self._opened[0]
        heard = store.watch(timeout)
        return {store: tuple(heard)} if heard else {}

    def wake(self) -> None:
        """See `SharedClient.wake`."""
        for store in self._opened[:1]:
            store.wake()

    def close(self) -> None:
        """See `SharedClient.close`."""
        for store in self._opened:
            store.close()
