"""How the contract reaches a store, and helpers of its tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, Protocol, TypeVar

import pytest

from celery_sticky.errors import StoreUnavailable
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.stores.base import Store

Heard = TypeVar("Heard", covariant=True)


class Watching(Protocol[Heard]):
    """The methods of every kind of store."""

    def watch(self, timeout: float) -> Collection[Heard]:
        """Wait for signals."""

    def wake(self) -> None:
        """Interrupt a watch."""

    def close(self) -> None:
        """Close every connection."""


AnyStore = TypeVar("AnyStore", bound=Watching[Any])
"""The kind of store: the same servers serve every kind."""
OpenStore = Callable[..., Store]
TIMEOUT = 10.0
"""Seconds to wait for an expected event before the test fails."""


class StoreServer(Generic[AnyStore]):
    """A server under test. Drivers leave a method as it is here if their tests cannot do it to their server."""

    def connect(self, keyspace: str, prefix: str) -> AnyStore:
        """Return a new store object."""
        raise NotImplementedError

    def cut(self) -> None:
        """Break every connection."""
        pytest.skip("these tests may not break this server's connections")

    def stop(self) -> None:
        """Make the server answer nobody."""
        pytest.skip("these tests may not stop this server")

    def restart(self) -> None:
        """Bring the server back with its data; stop it first if it runs."""
        pytest.skip("these tests may not restart this server")

    def set_clock(self, ahead: float) -> None:
        """Set the server's clock so many seconds ahead of the true time."""
        pytest.skip("these tests may not set this server's clock")

    def wipe(self) -> None:
        """Make the server lose all its data and continue."""
        pytest.skip("these tests may not wipe this server")


def first_view(store: Store) -> View:
    """Write and return a document without members."""
    store_id = store.read().store_id
    view = changes.fresh(slots=8, hash="h", generation=1, version=1, store_id=store_id)
    assert store.swap(None, view)
    return view


def joined(store: Store, view: View, name: str) -> View:
    """Let a member (incarnation `<name>-1`) join, and return the new view."""
    new = changes.join(view, Member(name, f"{name}-1"))
    assert store.swap(view, new)
    return new


def hear(store: Watching[Heard], wanted: object) -> list[Heard]:
    """Watch until `wanted` arrives; return everything that arrived."""
    deadline = time.monotonic() + TIMEOUT
    heard: list[Heard] = []
    while wanted not in heard:
        left = deadline - time.monotonic()
        assert left > 0, f"{wanted} did not come, only {heard}"
        heard += store.watch(left)
    return heard


def revived(verb: Callable[[], object]) -> None:
    """Call a method until it works."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            verb()
        except StoreUnavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            time.sleep(0.02)
        else:
            return


class Opening(Generic[AnyStore]):
    """Fixtures: stores of one server, closed after the test."""

    @pytest.fixture
    def server(self) -> StoreServer[AnyStore]:
        """Return the server under test; override this."""
        raise NotImplementedError("override the `server` fixture to say how to reach the server")

    @pytest.fixture
    def open_store(self, server: StoreServer[AnyStore]) -> Iterator[Callable[..., AnyStore]]:
        """Return a function that opens any number of stores: `open_store(keyspace, prefix)`."""
        stores: list[AnyStore] = []

        def open_store(keyspace: str = "default", prefix: str = "one") -> AnyStore:
            stores.append(server.connect(keyspace, prefix))
            return stores[-1]

        yield open_store
        for store in stores:
            store.close()

    @pytest.fixture
    def store(self, open_store: Callable[..., AnyStore]) -> AnyStore:
        """Open a store."""
        return open_store()

    @pytest.fixture
    def other(self, open_store: Callable[..., AnyStore]) -> AnyStore:
        """Open another client of the same store."""
        return open_store()
