"""The job store contract: signals of `watch`, results of `look`, and a server that fails and comes back."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import SEEN_RECORDS, DispatchOutcome, JobState, JobStore
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT, OpenJobs
from celery_sticky.testing.store_contract.server import TIMEOUT, Opening, StoreServer, hear, revived
from celery_sticky.testing.store_contract.watching import WatchContract

FAR = SLOT + 1


class JobSignalContract(WatchContract[JobStore]):
    """The signals of `watch` and the results of `look`."""

    def test_an_admission_a_note_and_a_stop_are_heard(self, store: JobStore, other: JobStore) -> None:
        other.watch(0)
        steps.queued(store)
        assert set(hear(other, SLOT)) == {SLOT}
        steps.note(store)
        assert set(hear(other, SLOT)) == {SLOT}
        store.stop(SLOT, "feed", "k")
        assert set(hear(other, SLOT)) == {SLOT}

    def test_the_stop_of_a_job_that_runs_is_heard(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        other.watch(0)
        store.stop(SLOT, "feed", "k")
        assert set(hear(other, SLOT)) == {SLOT}

    def test_a_dispatch_over_a_job_that_is_stopping_is_heard(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        store.stop(SLOT, "feed", "k")
        other.watch(0)
        steps.queued(store, steps.job("d2"))
        assert set(hear(other, SLOT)) == {SLOT}

    def test_a_shutdown_is_heard_in_every_slot_that_has_jobs(self, store: JobStore, other: JobStore) -> None:
        steps.queued(store, steps.job("d1", slot=0))
        steps.running(store, steps.job("d2", slot=5))
        steps.settle(store, steps.ended(steps.running(store, steps.job("d3", slot=9)).id), slot=9)
        other.watch(0)
        store.close_keyspace(closed=True)
        heard: set[Slot] = set()
        while heard != {0, 5}:
            more = other.watch(TIMEOUT)
            assert more and not heard & set(more)
            heard |= set(more)

    def test_signals_stay_in_their_keyspace_and_prefix(self, store: JobStore, open_store: OpenJobs) -> None:
        store.watch(0)
        steps.queued(open_store("elsewhere"), steps.job(slot=1))
        steps.queued(open_store(prefix="two"), steps.job(slot=2))
        steps.queued(store)
        assert set(hear(store, SLOT)) == {SLOT}

    def test_a_watch_under_way_is_ended_by_a_signal(self, store: JobStore, other: JobStore) -> None:
        store.watch(0)
        sender = threading.Timer(0.1, steps.queued, [other])
        sender.start()
        assert set(store.watch(TIMEOUT)) == {SLOT}
        sender.join()

    def test_no_change_is_missed_between_the_first_watch_and_a_look(self, store: JobStore, other: JobStore) -> None:
        steps.queued(other, steps.job("before", slot=1))
        store.watch(0)
        steps.queued(other, steps.job("between", slot=2))
        assert set(store.look({1: 0, 2: 0, 3: 0})) == {1, 2}
        steps.queued(other, steps.job("after", slot=3))
        assert set(hear(store, 3)) == {2, 3}

    def test_a_look_tells_only_of_slots_that_differ_from_what_is_known(self, store: JobStore) -> None:
        steps.queued(store, steps.job("d1", slot=1))
        steps.queued(store, steps.job("d2", slot=2))
        known = {slot: seen.revision for slot, seen in store.look({1: 0, 2: 0, 3: 0}).items()}
        assert set(known) == {1, 2}
        assert store.look(known | {3: 0}) == {}
        assert store.look({}) == {}
        steps.running(store, steps.job("d3", slot=2, key="k3"))
        seen = store.look(known)
        assert set(seen) == {2}
        assert {record.id for record in seen[2].records} == {"d2", "d3"}
        assert seen[2].revision > known[2]
        assert set(store.look({1: known[1] + 1})) == {1}

    def test_a_slot_that_is_empty_again_is_seen_to_be(self, store: JobStore) -> None:
        steps.running(store)
        known = steps.revision(store)
        steps.settle(store, steps.ended())
        seen = store.look({SLOT: known})[SLOT]
        assert (seen.records, seen.notes) == ((), ())
        assert store.look({SLOT: seen.revision}) == {}

    def test_thousands_of_slots_are_looked_at_at_once(self, store: JobStore) -> None:
        for slot in (0, 999, 1000, 9999):
            steps.queued(store, steps.job(f"d{slot}", slot=slot))
        seen = store.look(dict.fromkeys(range(10000), 0))
        assert {slot: found.records[0].id for slot, found in seen.items()} == {
            slot: f"d{slot}" for slot in (0, 999, 1000, 9999)
        }

    def test_a_look_ends_behind_the_slot_with_which_there_are_enough_records(self, store: JobStore) -> None:
        for slot in range(4):
            for i in range(SEEN_RECORDS // 2 + 1):
                steps.queued(store, steps.job(f"d{slot}-{i}", key=f"k{i}", slot=slot))
        asked = [8, 2, 3, 0, 1]
        seen = store.look(dict.fromkeys(asked, 0))
        assert list(seen) == [2, 3]
        assert {len(found.records) for found in seen.values()} == {SEEN_RECORDS // 2 + 1}
        known = {slot: found.revision for slot, found in seen.items()}
        assert list(store.look({**dict.fromkeys(asked, 0), **known})) == [0, 1]
        for i in range(SEEN_RECORDS // 2):
            steps.queued(store, steps.job(f"more{i}", key=f"more{i}", slot=0))
        assert len(store.look({0: 0, 1: 0})[0].records) == SEEN_RECORDS + 1, "a slot is seen whole"

    def test_what_a_server_has_lost_and_what_came_after_is_seen(
        self, server: StoreServer[JobStore], store: JobStore
    ) -> None:
        steps.running(store)
        known = steps.revision(store)
        server.wipe()
        lost = store.look({SLOT: known})[SLOT]
        assert (lost.revision, lost.records) == (0, ())
        with pytest.raises(Fenced):
            steps.settle(store, steps.ended())
        steps.running(store, steps.job("d2"))
        assert {record.id for record in store.look({SLOT: known})[SLOT].records} == {"d2"}


class JobFaultContract(Opening[JobStore]):
    """A server that fails and comes back."""

    def test_a_broken_subscription_is_told_once_and_then_made_again(
        self, server: StoreServer[JobStore], store: JobStore, other: JobStore
    ) -> None:
        store.watch(0)
        server.cut()
        with pytest.raises(StoreUnavailable):
            store.watch(TIMEOUT)
        assert list(store.watch(TIMEOUT)) == []
        revived(other.records)
        steps.queued(other)
        hear(store, SLOT)

    def test_a_lost_signal_is_made_good_by_a_look(
        self, server: StoreServer[JobStore], store: JobStore, other: JobStore
    ) -> None:
        steps.running(store)
        known = steps.revision(store)
        store.watch(0)
        server.cut()
        revived(other.records)
        other.stop(SLOT, "feed", "k")
        revived(store.records)
        assert store.look({SLOT: known})[SLOT].records[0].state is JobState.STOPPING

    def test_a_wait_for_an_outcome_that_is_cut_off_may_be_repeated(
        self, server: StoreServer[JobStore], store: JobStore, other: JobStore
    ) -> None:
        server.cut()
        revived(store.records)
        steps.starting(store)
        outcomes: list[DispatchOutcome | None] = []
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(revived, lambda: outcomes.append(other.outcome("d1", TIMEOUT)))
            server.cut()
            revived(store.records)
            steps.settle(store, steps.failed())
            waiting.result(TIMEOUT)
        assert outcomes == [DispatchOutcome("boom")]

    def test_every_verb_of_a_stopped_server_says_unavailable(
        self, server: StoreServer[JobStore], store: JobStore
    ) -> None:
        steps.running(store)
        server.stop()
        verbs: list[Callable[[], object]] = [
            lambda: steps.ask(store, steps.job("d2")),
            lambda: store.outcome("d1", 1),
            lambda: store.stop(SLOT, "feed", "k"),
            lambda: steps.note(store),
            store.records,
            lambda: store.close_keyspace(closed=True),
            lambda: store.claim_tick("t", 60),
            lambda: store.open(SLOT, EPOCH),
            lambda: store.look({SLOT: 0}),
            lambda: store.reserve(SLOT, EPOCH, "w1", ["d1"]),
            lambda: steps.settle(store, steps.started()),
            lambda: store.watch(1),
        ]
        for verb in verbs:
            with pytest.raises(StoreUnavailable):
                verb()

    def test_a_server_that_comes_back_has_everything(
        self, server: StoreServer[JobStore], store: JobStore, other: JobStore
    ) -> None:
        steps.running(store)
        steps.starting(store, steps.job("d2", key="k2", slot=FAR))
        steps.settle(store, steps.failed("d2"), slot=FAR)
        steps.note(store)
        assert store.claim_tick("t", steps.DECADES).claimed
        before = store.look({SLOT: 0, FAR: 0})
        server.restart()
        revived(store.records)
        revived(other.records)
        assert store.look({SLOT: 0, FAR: 0}) == before
        assert other.outcome("d2", 0) == DispatchOutcome("boom")
        assert not store.claim_tick("t", steps.DECADES).claimed
        steps.reserved(store, "d1")
        assert steps.record(store).attempt == 2
        assert steps.notes(store) == [b"{}"]
        assert steps.ids(store) == {"d1"}
