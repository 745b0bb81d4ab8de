"""The store contract: document, counters, revokes."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.stores.base import Store
from celery_sticky.testing.store_contract.server import TIMEOUT, Opening, OpenStore, first_view, joined
from celery_sticky.testing.waiting import wait_until


class DocumentContract(Opening[Store]):
    """Document, counters, revokes."""

    def test_a_new_store_is_empty(self, store: Store) -> None:
        reading = store.read()
        assert reading.view is None
        assert reading.heartbeats == {}
        assert reading.store_id
        assert abs(reading.clock - time.time()) < 60

    def test_a_document_is_read_as_it_was_written(self, store: Store, other: Store) -> None:
        view = first_view(store)
        member = Member("wörker@host", "w-1", weight=3, attributes={"zone": "a"})
        new = changes.join(view, member)
        assert store.swap(view, new)
        assert other.read().view == new

    def test_the_first_document_is_written_once(self, store: Store, other: Store) -> None:
        view = first_view(store)
        assert not other.swap(None, replace(view, generation=2))
        assert other.read().view == view

    def test_a_first_document_that_arrives_too_late_is_refused(self, store: Store) -> None:
        reading = store.read()
        view = changes.fresh(slots=8, hash="h", generation=1, version=1, store_id=reading.store_id)
        assert not store.swap(None, view, None, reading.clock - 0.001)
        assert store.read().view is None
        assert store.swap(None, view, None, reading.clock + 60.0)

    def test_nothing_is_swapped_for_a_document_that_is_not_there(self, store: Store) -> None:
        view = changes.fresh(slots=8, hash="h", generation=1, version=1, store_id=store.read().store_id)
        assert not store.swap(view, replace(view, version=2))
        assert store.read().view is None

    def test_a_swap_over_another_version_is_refused(self, store: Store, other: Store) -> None:
        view = first_view(store)
        newer = joined(store, view, "a")
        assert not other.swap(view, changes.join(view, Member("b", "b-1")))
        assert other.read().view == newer

    def test_a_swap_over_another_generation_is_refused(self, store: Store) -> None:
        view = first_view(store)
        assert not store.swap(replace(view, generation=7), replace(view, generation=8, version=2))
        assert store.read().view == view

    def test_a_swap_meant_for_another_run_of_the_store_is_refused(self, store: Store) -> None:
        view = first_view(store)
        assert not store.swap(view, replace(view, version=2, store_id="another"))
        assert store.read().view == view

    def test_of_twenty_swaps_at_once_one_wins(self, store: Store, open_store: OpenStore) -> None:
        view = first_view(store)
        candidates = [changes.join(view, Member(f"w{i}", f"w{i}-1")) for i in range(20)]
        clients = [open_store() for _ in candidates]
        line = threading.Barrier(len(candidates))

        def swap(client: Store, new: View) -> bool:
            line.wait(TIMEOUT)
            return client.swap(view, new)

        with ThreadPoolExecutor(len(candidates)) as threads:
            won = list(threads.map(swap, clients, candidates))
        assert won.count(True) == 1
        assert store.read().view == candidates[won.index(True)]
        assert list(store.read().heartbeats) == [f"w{won.index(True)}-1"]

    def test_the_swap_of_a_join_makes_a_counter_at_zero_and_leaves_the_others(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        store.heartbeat("a-1")
        joined(store, view, "b")
        assert store.read().heartbeats == {"a-1": 1, "b-1": 0}

    def test_the_swap_of_an_eviction_removes_the_counter(self, store: Store) -> None:
        view = joined(store, joined(store, first_view(store), "a"), "b")
        assert store.swap(view, changes.evict(view, "a"))
        assert store.read().heartbeats == {"b-1": 0}

    def test_a_guarded_swap_is_refused_once_the_counter_has_moved(self, store: Store, other: Store) -> None:
        view = joined(store, joined(store, first_view(store), "a"), "b")
        store.heartbeat("a-1")
        assert not other.swap(view, changes.evict(view, "a"), {"a-1": 0})
        assert other.read().view == view
        assert other.read().heartbeats == {"a-1": 1, "b-1": 0}
        assert other.swap(view, changes.evict(view, "a"), {"a-1": 1, "b-1": 0})

    def test_a_swap_guarded_by_a_counter_that_is_not_there_is_refused(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        assert not store.swap(view, changes.evict(view, "a"), {"a-1": 0, "nobody": 0})

    def test_a_beat_counts_and_tells_version_generation_and_store(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        heartbeat = store.heartbeat("a-1")
        assert (heartbeat.alive, heartbeat.version, heartbeat.generation) == (True, view.version, view.generation)
        assert heartbeat.counter == 1 == store.read().heartbeats["a-1"]
        assert heartbeat.store_id == store.read().store_id
        assert heartbeat.heartbeats == {}
        view = joined(store, view, "b")
        assert store.heartbeat("a-1", announce=False).heartbeats == {"a-1": 2, "b-1": 0} == store.read().heartbeats
        assert store.heartbeat("nobody", announce=False).heartbeats == {}

    def test_a_reading_tells_how_long_each_member_has_been_silent(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        assert -1 < store.read().silent["a-1"] < 60

        def heard() -> float:
            reading = store.read()
            return reading.clock - reading.silent["a-1"]

        before = heard()
        assert abs(heard() - before) < 0.0005, "no heartbeat"
        assert wait_until(lambda: store.heartbeat("a-1").alive and heard() > before + 0.001, TIMEOUT, "it is heard")
        view = joined(store, view, "b")
        assert store.read().silent.keys() == {"a-1", "b-1"}
        assert store.swap(view, changes.evict(view, "a"))
        assert store.read().silent.keys() == {"b-1"}

    def test_who_is_gone_stays_gone(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        evicted = changes.evict(view, "a")
        assert store.swap(view, evicted)
        heartbeat = store.heartbeat("a-1")
        assert (heartbeat.alive, heartbeat.version, heartbeat.generation) == (
            False,
            evicted.version,
            evicted.generation,
        )
        assert store.read().heartbeats == {}
        assert not store.heartbeat("a-1").alive

    def test_a_beat_where_there_is_no_document_makes_nothing(self, store: Store) -> None:
        heartbeat = store.heartbeat("a-1")
        assert (heartbeat.alive, heartbeat.version, heartbeat.generation) == (False, 0, 0)
        assert heartbeat.store_id == store.read().store_id
        assert store.read().heartbeats == {}

    def test_a_fresh_document_over_an_old_one_forgets_its_members(self, store: Store) -> None:
        view = joined(store, first_view(store), "a")
        fresh = changes.fresh(slots=8, hash="h", generation=2, version=view.version + 1, store_id=view.store_id)
        assert store.swap(view, fresh)
        assert not store.heartbeat("a-1").alive
        assert store.read().view == fresh

    def test_keyspaces_do_not_see_each_other(self, store: Store, open_store: OpenStore) -> None:
        elsewhere = open_store("elsewhere")
        joined(store, first_view(store), "a")
        assert elsewhere.read().view is None
        assert not elsewhere.heartbeat("a-1").alive
        mine = joined(elsewhere, first_view(elsewhere), "b")
        assert elsewhere.read().view == mine
        assert store.read().heartbeats == {"a-1": 0}

    def test_prefixes_do_not_see_each_other(self, store: Store, open_store: OpenStore) -> None:
        apart = open_store(prefix="two")
        first_view(store)
        store.revoke(["t"], ttl=60, limit=10)
        assert apart.read().view is None
        assert apart.revoked() == frozenset()

    def test_revoked_ids_are_known_in_every_keyspace(self, store: Store, open_store: OpenStore) -> None:
        store.revoke(["t1", "t2"], ttl=60, limit=10)
        store.revoke([], ttl=60, limit=10)
        assert set(open_store("elsewhere").revoked()) == {"t1", "t2"}

    def test_only_the_newest_revoked_ids_are_kept(self, store: Store) -> None:
        for number in range(5):
            store.revoke([f"t{number}"], ttl=60, limit=3)
        assert set(store.revoked()) == {"t2", "t3", "t4"}
        store.revoke(["t2"], ttl=60, limit=3)
        store.revoke(["t5"], ttl=60, limit=3)
        assert set(store.revoked()) == {"t2", "t4", "t5"}

    def test_a_revoked_id_is_forgotten_after_its_time(self, store: Store) -> None:
        store.revoke(["long"], ttl=60, limit=10)
        store.revoke(["short"], ttl=0.05, limit=10)
        deadline = time.monotonic() + TIMEOUT
        while set(store.revoked()) != {"long"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # until the short id is forgotten
