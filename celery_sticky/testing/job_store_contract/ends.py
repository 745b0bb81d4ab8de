"""The job store contract: when nothing of a stopped job is left, and how its stop went."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import pytest

from celery_sticky.stores.jobs import STOPPED, Admission, DispatchOutcome, JobState, JobStore, Report, RunResult
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT
from celery_sticky.testing.store_contract.server import Opening
from celery_sticky.testing.waiting import wait_until

AGAIN = steps.job("d2")
"""A second dispatch of the same job."""


def unclean(job_id: str = "d1", error: str = "boom") -> Report:
    """Return the report of a stop that raised."""
    return Report(job_id, RunResult.UNCLEAN, error)


class EndContract(Opening[JobStore]):
    """The ends of jobs."""

    def test_a_job_is_found_by_name_and_key(self, store: JobStore, other: JobStore) -> None:
        steps.queued(store)
        assert other.find(SLOT, "feed", "k") == steps.record(store)
        assert other.find(SLOT, "feed", "k2") is None
        assert other.find(SLOT + 1, "feed", "k") is None

    def test_a_job_is_ending_from_its_stop_until_its_end(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        assert other.ending() == 0
        store.stop(SLOT, "feed", "k")
        store.stop(SLOT, "feed", "k")
        assert other.ending() == 1
        steps.settle(store, steps.ended())
        assert other.ending() == 0

    def test_all_jobs_of_a_closed_keyspace_are_ending_and_none_that_never_ran(self, store: JobStore) -> None:
        steps.running(store)
        steps.running(store, steps.job("d2", slot=1))
        steps.queued(store, steps.job("d3", key="k3"))
        store.close_keyspace(closed=True)
        assert store.ending() == 2
        steps.settle(store, steps.ended())
        steps.settle(store, steps.failed("d2"), slot=1)
        assert store.ending() == 0

    def test_a_replaced_job_is_ending_until_the_start_of_the_next_one(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, AGAIN)
        found = steps.record(store, "d2")
        assert (found.state, found.attempt, found.epoch, found.worker) == (JobState.QUEUED, 0, EPOCH, "w1")
        assert found.replaces and store.ending() == 1
        steps.reserved(store, "d2")
        assert not steps.record(store, "d2").replaces and store.ending() == 0

    def test_a_job_that_waits_for_an_old_run_is_stopped_by_its_owner(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, AGAIN)
        assert store.stop(SLOT, "feed", "k") == "d2"
        found = steps.record(store, "d2")
        assert (found.state, found.fresh, found.replaces) == (JobState.STOPPING, True, True)
        assert (store.ending(), store.outcome("d2", 0)) == (1, None)
        steps.settle(store, steps.ended("d2", STOPPED))
        assert (store.ending(), store.outcome("d2", 0)) == (0, DispatchOutcome(STOPPED))

    def test_closing_leaves_a_job_that_waits_for_an_old_run_to_its_owner(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, AGAIN)
        store.close_keyspace(closed=True)
        assert steps.record(store, "d2").state is JobState.STOPPING

    def test_a_job_may_replace_one_that_itself_waited_for_an_old_run(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, AGAIN)
        store.stop(SLOT, "feed", "k")
        assert steps.ask(store, steps.job("d3")) == (Admission.ADMITTED, None)
        assert steps.record(store, "d3").replaces and store.ending() == 1
        assert store.outcome("d2", 0) == DispatchOutcome(STOPPED)

    def test_a_job_after_an_end_replaces_none(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.settle(store, steps.ended())
        steps.queued(store, AGAIN)
        assert not steps.record(store, "d2").replaces and store.ending() == 0
        store.stop(SLOT, "feed", "k")
        assert steps.ids(store) == set()

    def test_the_error_of_a_stop_is_kept(self, store: JobStore, other: JobStore) -> None:
        steps.stopping(store)
        assert other.stop_error("d1") == ""
        steps.settle(store, unclean())
        assert steps.ids(store) == set()
        assert (other.stop_error("d1"), other.stop_error("d2")) == ("boom", "")

    def test_the_error_of_a_stop_is_kept_also_if_the_job_was_replaced(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, AGAIN)
        steps.settle(store, unclean())
        assert store.stop_error("d1") == "boom"
        assert steps.record(store, "d2").replaces

    def test_the_error_of_a_stop_is_not_kept_for_ever(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.settle(store, unclean(), ttl=0.05)
        wait_until(lambda: store.stop_error("d1") == "")

    @pytest.mark.parametrize("report", [steps.ended(), steps.failed()], ids=lambda report: report.result)
    def test_other_ends_have_no_error_of_a_stop(self, store: JobStore, report: Report) -> None:
        steps.stopping(store)
        steps.settle(store, report)
        assert store.stop_error("d1") == ""
