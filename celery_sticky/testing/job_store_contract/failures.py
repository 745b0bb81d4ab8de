"""The job store contract: jobs that stay although they fail, are given up, and are started again."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_sticky.stores.jobs import DispatchOutcome, JobState, JobStore, Report, RunResult
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT
from celery_sticky.testing.store_contract.server import Opening

DURABLE = replace(steps.job(), durable=True)
GIVEN_UP = Report("d1", RunResult.GIVEN_UP, "boom", failures=5)


def given_up(store: JobStore) -> None:
    """Create a job that was given up."""
    steps.running(store)
    steps.settle(store, GIVEN_UP)
    assert steps.record(store).state is JobState.FAILED


class FailureContract(Opening[JobStore]):
    """Jobs that stay although they fail, are given up, and are started again."""

    def test_a_durable_job_stays_if_its_first_start_fails_and_its_outcome_says_so(self, store: JobStore) -> None:
        steps.starting(store, DURABLE)
        steps.note(store)
        steps.settle(store, steps.failed())
        found = steps.record(store)
        assert (found.state, found.fresh, found.durable, found.error) == (JobState.FAILING, False, True, "boom")
        assert store.outcome("d1", 0) == DispatchOutcome("boom")
        assert steps.ask(store, DURABLE)[1] == DispatchOutcome("boom")
        assert steps.notes(store) == [b"{}"]

    def test_a_durable_job_that_fails_no_longer_waits_for_its_start(self, store: JobStore) -> None:
        steps.starting(store, DURABLE)
        steps.settle(store, steps.failed())
        assert steps.ask(store, steps.job("d2", key="other"), max_queued=1)[0] == "admitted"

    def test_who_waits_for_the_start_makes_no_other_dispatch(self, store: JobStore) -> None:
        steps.queued(store, DURABLE)
        assert steps.ask(store, steps.job())[0] == "repeated"

    def test_a_durable_job_that_is_to_stop_goes_if_its_first_start_fails(self, store: JobStore) -> None:
        steps.stopping(store, DURABLE, fresh=True)
        steps.settle(store, steps.failed())
        assert steps.ids(store) == set()

    def test_a_start_that_was_withdrawn_is_no_attempt(self, store: JobStore) -> None:
        steps.starting(store)
        steps.settle(store, Report("d1", RunResult.WITHDRAWN))
        assert (steps.record(store).state, steps.record(store).attempt) == (JobState.QUEUED, 0)
        steps.reserved(store, "d1")
        assert (steps.record(store).state, steps.record(store).attempt) == (JobState.STARTING, 1)
        store.stop(SLOT, "feed", "k")
        steps.settle(store, Report("d1", RunResult.WITHDRAWN))
        assert steps.record(store).state is JobState.STOPPING

    def test_a_later_start_is_never_withdrawn(self, store: JobStore) -> None:
        steps.running(store)
        steps.settle(store, Report("d1", RunResult.WITHDRAWN))
        assert (steps.record(store).state, steps.record(store).attempt) == (JobState.RUNNING, 1)

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_first_start_may_be_given_up(self, store: JobStore, durable: bool) -> None:
        steps.starting(store, replace(DURABLE, durable=durable))
        steps.settle(store, GIVEN_UP)
        assert store.outcome("d1", 0) == DispatchOutcome("boom")
        assert [record.state for record in store.records()] == [JobState.FAILED] * durable

    def test_a_job_that_was_given_up_is_there_and_keeps_its_place(self, store: JobStore) -> None:
        given_up(store)
        assert (steps.record(store).error, steps.record(store).failures) == ("boom", 5)
        assert steps.ask(store, steps.job("d2"))[0] == "exists"
        assert list(store.keys("feed")) == ["k"]

    def test_a_stop_of_a_job_that_was_given_up_removes_it(self, store: JobStore) -> None:
        given_up(store)
        steps.note(store)
        assert store.stop(SLOT, "feed", "k")
        assert (steps.ids(store), steps.notes(store)) == (set(), [])

    def test_a_job_that_was_given_up_is_started_again_by_a_restart(self, store: JobStore, other: JobStore) -> None:
        given_up(store)
        store.watch(0.0)
        assert other.update(SLOT, "feed", "k", None, restart=True) == "d1"
        found = steps.record(store)
        assert (found.state, found.error, found.failures, found.fresh) == (JobState.QUEUED, "", 0, False)
        assert (found.worker, found.epoch) == ("", 0)
        assert list(store.watch(5.0)) == [SLOT]
        steps.reserved(store, "d1")

    def test_another_payload_alone_starts_no_job_that_was_given_up(self, store: JobStore) -> None:
        given_up(store)
        assert store.update(SLOT, "feed", "k", b"7", restart=False) == "d1"
        assert (steps.record(store).state, steps.record(store).payload) == (JobState.FAILED, b"7")

    def test_a_job_that_fails_while_it_is_to_pause_is_paused_with_its_error(self, store: JobStore) -> None:
        steps.running(store)
        store.pause(SLOT, "feed", "k")
        steps.settle(store, steps.failed())
        assert (steps.record(store).state, steps.record(store).error) == (JobState.PAUSING, "boom")
