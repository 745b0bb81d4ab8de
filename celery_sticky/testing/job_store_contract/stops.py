"""The job store contract: stopping jobs, and shutting keyspaces down."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_sticky.stores.jobs import STOPPED, Admission, DispatchOutcome, JobState, JobStore, NewJob
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT, SUCCESS, OpenJobs
from celery_sticky.testing.store_contract.server import Opening

Begin = Callable[[JobStore, NewJob], NewJob]
BEGUN = [steps.starting, steps.running, steps.failing]


class StopContract(Opening[JobStore]):
    """Stopping jobs, and shutting keyspaces down."""

    def test_a_stop_before_the_start_removes_the_job_and_its_notes_and_says_so(
        self, store: JobStore, other: JobStore
    ) -> None:
        steps.queued(store)
        steps.queued(store, steps.job("d2", key="k2"))
        steps.note(store)
        steps.note(store, b"2", to=steps.job(key="k2"))
        assert other.stop(SLOT, "feed", "k")
        assert steps.ids(store) == {"d2"}
        assert steps.notes(store) == [b"2"]
        assert store.outcome("d1", 0) == DispatchOutcome(STOPPED)

    @pytest.mark.parametrize("begin", BEGUN)
    def test_a_stop_of_a_job_whose_start_was_begun_leaves_it_to_its_owner(self, store: JobStore, begin: Begin) -> None:
        begin(store, steps.job())
        steps.note(store)
        before = steps.record(store)
        assert store.stop(SLOT, "feed", "k")
        after = steps.record(store)
        assert (before.state, after.state) != (JobState.STOPPING, JobState.QUEUED)
        assert after.state is JobState.STOPPING
        assert (after.id, after.fresh, after.attempt, after.worker) == ("d1", before.fresh, 1, "w1")
        assert after.version > before.version
        assert steps.notes(store) == [b"{}"]
        assert store.outcome("d1", 0) == (None if before.fresh else SUCCESS)

    def test_there_is_nothing_to_stop_where_there_is_no_job(self, store: JobStore) -> None:
        steps.queued(store)
        assert not store.stop(SLOT, "feed", "k2")
        assert not store.stop(SLOT, "feed2", "k")
        assert not store.stop(SLOT + 1, "feed", "k")
        assert steps.ids(store) == {"d1"}
        assert store.stop(SLOT, "feed", "k")
        assert not store.stop(SLOT, "feed", "k")

    def test_a_stop_may_be_repeated(self, store: JobStore) -> None:
        steps.stopping(store)
        before = store.look({SLOT: 0})
        assert store.stop(SLOT, "feed", "k")
        assert store.look({SLOT: 0}) == before

    def test_a_stopped_job_may_be_wanted_again_under_another_id(self, store: JobStore) -> None:
        new = steps.queued(store)
        store.stop(SLOT, "feed", "k")
        assert steps.ask(store, new) == (Admission.REPEATED, DispatchOutcome(STOPPED))
        steps.queued(store, steps.job("d2"))
        assert steps.ids(store) == {"d2"}

    def test_a_closed_keyspace_stops_every_job_and_refuses_new_ones(self, store: JobStore, other: JobStore) -> None:
        begun = [begin(store, steps.job(f"d{i}", key=f"k{i}", slot=i)) for i, begin in enumerate(BEGUN)]
        waiting = [steps.queued(store, steps.job(f"q{i}", key=f"q{i}", slot=i)) for i in range(5)]
        steps.note(store, b"gone", to=waiting[0])
        steps.note(store, b"stays", to=begun[0])
        other.close_keyspace(closed=True)
        assert {found.id: found.state for found in store.records()} == dict.fromkeys(
            (new.id for new in begun), JobState.STOPPING
        )
        assert [store.outcome(new.id, 0) for new in waiting] == [DispatchOutcome(STOPPED)] * 5
        assert steps.notes(store, 0) == [b"stays"]
        assert steps.ask(store, steps.job("new")) == (Admission.CLOSED, None)
        assert steps.note(store, to=begun[1]).value == "no job"

    def test_a_keyspace_may_be_closed_twice_and_its_jobs_end(self, store: JobStore) -> None:
        steps.running(store)
        store.close_keyspace(closed=True)
        before = store.look({SLOT: 0})
        store.close_keyspace(closed=True)
        assert store.look({SLOT: 0}) == before
        steps.settle(store, steps.ended())
        assert steps.ids(store) == set()

    def test_a_reopened_keyspace_admits_again_and_brings_nothing_back(self, store: JobStore) -> None:
        steps.running(store)
        steps.queued(store, steps.job("d2", key="k2"))
        store.close_keyspace(closed=True)
        store.close_keyspace(closed=False)
        store.close_keyspace(closed=False)
        assert {found.id: found.state for found in store.records()} == {"d1": JobState.STOPPING}
        steps.queued(store, steps.job("d3"))
        assert steps.ids(store) == {"d3"}

    def test_what_was_stopped_by_closing_waits_no_more(self, store: JobStore) -> None:
        steps.queued(store)
        store.close_keyspace(closed=True)
        store.close_keyspace(closed=False)
        assert steps.ask(store, steps.job("d2"), max_queued=1) == (Admission.ADMITTED, None)

    def test_another_keyspace_is_not_closed(self, store: JobStore, open_store: OpenJobs) -> None:
        elsewhere = open_store("elsewhere")
        steps.queued(elsewhere)
        before = steps.revision(elsewhere)
        store.close_keyspace(closed=True)
        assert steps.revision(elsewhere) == before
        steps.queued(elsewhere, steps.job("d2", key="k2"))

    def test_a_closed_keyspace_still_reserves_nothing_that_is_to_stop(self, store: JobStore) -> None:
        steps.running(store)
        store.close_keyspace(closed=True)
        steps.reserved(store)
        assert store.reserve(SLOT, 7, "w1", ["d1"]).attempts == {}
