"""The store contract: the signals of `watch`, and a server that fails and comes back."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from celery_sticky.errors import StoreUnavailable
from celery_sticky.ownership import changes
from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.ownership.view import Member
from celery_sticky.stores.base import Store
from celery_sticky.testing.store_contract.server import (
    TIMEOUT,
    Opening,
    OpenStore,
    StoreServer,
    first_view,
    hear,
    joined,
    revived,
)
from celery_sticky.testing.store_contract.watching import WatchContract


class SignalContract(WatchContract[Store]):
    """The signals of `watch`."""

    def test_others_hear_a_change_and_a_heartbeat(self, store: Store, other: Store) -> None:
        other.watch(0)
        view = joined(store, first_view(store), "a")
        hear(other, ViewChanged(view.version))
        store.heartbeat("a-1")
        hear(other, HeartbeatHeard("a-1", 1))

    def test_a_refused_swap_and_a_quiet_beat_are_not_heard(self, store: Store, other: Store) -> None:
        view = joined(store, first_view(store), "a")
        other.watch(0)
        assert not store.swap(None, view)
        store.heartbeat("a-1", announce=False)
        assert not store.heartbeat("gone").alive
        store.heartbeat("a-1")
        assert hear(other, HeartbeatHeard("a-1", 2)) == [HeartbeatHeard("a-1", 2)]

    def test_nobody_is_woken_by_their_own_heartbeat(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        store.watch(0)
        store.heartbeat("a-1")
        new = joined(store, view, "b")
        assert hear(store, ViewChanged(new.version)) == [ViewChanged(new.version)]

    def test_signals_stay_in_their_keyspace(self, store: Store, other: Store, open_store: OpenStore) -> None:
        elsewhere = open_store("elsewhere")
        other.watch(0)
        joined(elsewhere, joined(elsewhere, first_view(elsewhere), "x"), "y")  # version 3
        elsewhere.heartbeat("x-1")
        view = joined(store, first_view(store), "a")
        assert set(hear(other, ViewChanged(view.version))) <= {ViewChanged(1), ViewChanged(view.version)}

    def test_a_watch_under_way_is_ended_by_a_signal(self, store: Store, other: Store) -> None:
        store.watch(0)
        sender = threading.Timer(0.1, first_view, [other])
        sender.start()
        assert list(store.watch(TIMEOUT)) == [ViewChanged(1)]
        sender.join()


class FaultContract(Opening[Store]):
    """A server that fails and comes back."""

    def test_a_broken_subscription_is_told_once_and_then_made_again(
        self, server: StoreServer[Store], store: Store, other: Store
    ) -> None:
        store.watch(0)
        server.cut()
        with pytest.raises(StoreUnavailable):
            store.watch(TIMEOUT)
        assert list(store.watch(TIMEOUT)) == []
        revived(other.read)
        first_view(other)
        hear(store, ViewChanged(1))

    def test_a_lost_signal_is_made_good_by_a_beat(self, server: StoreServer[Store], store: Store, other: Store) -> None:
        view = joined(store, first_view(store), "a")
        store.watch(0)
        server.cut()
        revived(other.read)
        new = joined(other, view, "b")
        revived(store.read)
        assert store.heartbeat("a-1").version == new.version

    def test_every_verb_of_a_stopped_server_says_unavailable(self, server: StoreServer[Store], store: Store) -> None:
        view = first_view(store)
        server.stop()
        for verb in (
            store.read,
            lambda: store.swap(view, replace(view, version=2)),
            lambda: store.heartbeat("a-1"),
            lambda: store.watch(1),
            lambda: store.revoke(["t"], ttl=1, limit=1),
            store.revoked,
        ):
            with pytest.raises(StoreUnavailable):
                verb()

    def test_a_restarted_server_keeps_its_data_and_has_another_id_unless_it_is_durable(
        self, server: StoreServer[Store], store: Store
    ) -> None:
        view = joined(store, first_view(store), "a")
        store.heartbeat("a-1")
        server.restart()
        revived(store.read)
        reading = store.read()
        assert reading.view == view
        assert reading.heartbeats == {"a-1": 1}
        assert reading.store_id != view.store_id or store.durable
        assert store.heartbeat("a-1").store_id == reading.store_id

    def test_a_swap_thought_out_before_a_restart_is_refused(self, server: StoreServer[Store], store: Store) -> None:
        view = joined(store, first_view(store), "a")
        server.restart()
        revived(store.read)
        if store.read().store_id == view.store_id:
            pytest.skip("this server has lost nothing")
        assert not store.swap(view, changes.join(view, Member("b", "b-1")))
        fresh = changes.fresh(slots=8, hash="h", generation=2, version=view.version + 1, store_id=store.read().store_id)
        assert store.swap(view, fresh)
        assert store.read().view == fresh
