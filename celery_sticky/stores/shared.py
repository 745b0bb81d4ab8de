"""One client of a server for the stores of many keyspaces, and what stands in if a driver has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from celery_sticky.errors import DocumentDamaged, DocumentTooNew, StickyError, StoreRefused
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.jobs import JobCounts, JobStore
from celery_sticky.stores.placement import PlacementStore

AnyStore = Store | JobStore | PlacementStore
REFUSALS = (StoreRefused, DocumentDamaged, DocumentTooNew)
"""The errors that concern one keyspace: other keyspaces may be readable all the same."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def each(items: Iterable[Item], ask: Callable[[Item], Answer]) -> list[Answer | StickyError]:
    """Ask about one item after the other; an error that concerns one keyspace is its answer."""
    found: list[Answer | StickyError] = []
    for item in items:
        try:
            found.append(ask(item))
        except REFUSALS as error:
            found.append(error)
    return found


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

    def read_each(self, stores: Sequence[Store]) -> Sequence[Reading | StickyError]:
        """Call `Store.read` of stores opened here; return the answers in order. One round trip, if the driver can.

        Each reading is of one instant, but not of the same. An error that concerns one keyspace (`REFUSALS`) is its
        answer.

        Raises:
            StoreUnavailable: the server does not answer.
        """

    def enlisted_each(self, stores: Sequence[PlacementStore]) -> Sequence[Mapping[str, str] | StickyError]:
        """Call `PlacementStore.enlisted` of stores opened here, as `read_each` does."""

    def job_counts_each(self, stores: Sequence[JobStore]) -> Sequence[JobCounts | StickyError]:
        """Call `JobStore.counts` of stores opened here, as `read_each` does."""

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

    `watch` waits for the signals of the store that was opened first: it serves one keyspace.
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

    def read_each(self, stores: Sequence[Store]) -> Sequence[Reading | StickyError]:
        """See `SharedClient.read_each`. The stores have no connection in common, so they are asked one by one."""
        return each(stores, lambda store: store.read())

    def enlisted_each(self, stores: Sequence[PlacementStore]) -> Sequence[Mapping[str, str] | StickyError]:
        """See `SharedClient.enlisted_each`."""
        return each(stores, lambda store: store.enlisted())

    def job_counts_each(self, stores: Sequence[JobStore]) -> Sequence[JobCounts | StickyError]:
        """See `SharedClient.job_counts_each`."""
        return each(stores, lambda store: store.counts())

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
