"""The part that is the same for every kind of store: how long `watch` waits, and what ends it."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
import time

import pytest

from celery_sticky.testing.store_contract.server import TIMEOUT, AnyStore, Opening


class WatchContract(Opening[AnyStore]):
    """How long `watch` waits, and what ends it."""

    def test_the_first_watch_returns_at_once(self, store: AnyStore) -> None:
        before = time.monotonic()
        assert list(store.watch(TIMEOUT)) == []
        assert time.monotonic() - before < TIMEOUT / 2

    def test_a_watch_without_signals_ends_after_its_time(self, store: AnyStore) -> None:
        store.watch(0)
        before = time.monotonic()
        assert list(store.watch(0.2)) == []
        assert time.monotonic() - before >= 0.19

    def test_a_watch_under_way_is_woken_by_another_thread(self, store: AnyStore) -> None:
        store.watch(0)
        waker = threading.Timer(0.1, store.wake)
        waker.start()
        before = time.monotonic()
        assert list(store.watch(TIMEOUT)) == []
        assert time.monotonic() - before < TIMEOUT / 2
        waker.join()

    @pytest.mark.parametrize("subscribed", [True, False])
    def test_a_wake_before_a_watch_ends_that_watch_and_no_other(self, store: AnyStore, subscribed: bool) -> None:
        if subscribed:
            store.watch(0)
        for _ in range(3):
            store.wake()
        before = time.monotonic()
        assert list(store.watch(TIMEOUT)) == []
        assert time.monotonic() - before < TIMEOUT / 2
        before = time.monotonic()
        store.watch(0.2)
        assert time.monotonic() - before >= 0.19

    def test_a_store_may_be_closed_twice(self, store: AnyStore) -> None:
        store.watch(0)
        store.close()
        store.close()
