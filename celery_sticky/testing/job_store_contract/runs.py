"""The job store contract: what becomes of a job when its owner reports on a run."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import pytest

from celery_sticky.stores.jobs import JobState, JobStore, Outcome, Report
from celery_sticky.testing.job_store_contract.steps import (
    SLOT,
    SUCCESS,
    ended,
    failed,
    failing,
    ids,
    job,
    note,
    notes,
    queued,
    record,
    reserved,
    revision,
    running,
    settle,
    started,
    starting,
    stopping,
)
from celery_sticky.testing.store_contract.server import Opening


class RunContract(Opening[JobStore]):
    """What becomes of a job when its owner reports on a run."""

    def test_a_job_that_has_started_runs_and_is_no_longer_fresh(self, store: JobStore) -> None:
        starting(store)
        before = record(store)
        settle(store, started())
        after = record(store)
        assert (after.state, after.fresh, after.error) == (JobState.RUNNING, False, "")
        assert (after.attempt, after.worker, after.epoch) == (before.attempt, before.worker, before.epoch)
        assert after.payload == before.payload
        assert after.version > before.version

    def test_a_failed_first_start_removes_the_job_and_its_notes(self, store: JobStore) -> None:
        starting(store)
        note(store)
        settle(store, failed())
        assert ids(store) == set()
        assert notes(store) == []
        assert store.outcome("d1", 0) == Outcome("boom")
        queued(store, job("d2"))

    def test_a_failed_start_of_a_job_that_has_run_keeps_it_with_payload_and_notes(self, store: JobStore) -> None:
        running(store)
        note(store)
        reserved(store, "d1")
        settle(store, failed(error="bøom"))
        found = record(store)
        assert (found.state, found.error, found.fresh) == (JobState.FAILING, "bøom", False)
        assert (found.payload, found.attempt) == (job().payload, 2)
        assert notes(store) == [b"{}"]
        assert store.outcome("d1", 0) == SUCCESS

    def test_a_run_that_ends_with_an_error_is_failing(self, store: JobStore) -> None:
        running(store)
        settle(store, failed())
        assert (record(store).state, record(store).error) == (JobState.FAILING, "boom")

    def test_a_start_that_succeeds_again_forgets_the_error(self, store: JobStore) -> None:
        failing(store)
        reserved(store, "d1")
        assert record(store).error == "boom"
        settle(store, started())
        assert (record(store).state, record(store).error) == (JobState.RUNNING, "")

    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_start_of_a_job_that_is_to_stop_leaves_it_so(self, store: JobStore, fresh: bool) -> None:
        stopping(store, fresh=fresh)
        settle(store, started())
        assert (record(store).state, record(store).fresh) == (JobState.STOPPING, False)
        assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize("report", [failed(), ended(), ended(error="boom")])
    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_job_that_is_to_stop_goes_with_the_end_of_its_run(
        self, store: JobStore, report: Report, fresh: bool
    ) -> None:
        stopping(store, fresh=fresh)
        settle(store, report)
        assert ids(store) == set()
        assert store.outcome("d1", 0) == (Outcome(report.error) if fresh else SUCCESS)

    def test_a_job_that_ends_by_itself_goes_with_its_notes(self, store: JobStore) -> None:
        running(store)
        running(store, job("d2", key="k2"))
        note(store)
        note(store, b"2", to=job(key="k2"))
        settle(store, ended())
        assert ids(store) == {"d2"}
        assert notes(store) == [b"2"]

    def test_ids_that_are_no_records_are_passed_over(self, store: JobStore) -> None:
        starting(store)
        queued(store, job("elsewhere", key="k2", slot=SLOT + 1))
        settle(store, failed("unknown"), ended("elsewhere"), started("d1"), started("unknown"))
        assert ids(store) == {"d1", "elsewhere"}
        assert record(store).state is JobState.RUNNING
        assert record(store, "elsewhere").state is JobState.QUEUED
        assert store.outcome("unknown", 0) is None

    def test_reports_may_be_repeated(self, store: JobStore) -> None:
        starting(store)
        for report in (started(), failed(), ended()):
            settle(store, report)
            before = [(found.state, found.error, found.fresh) for found in store.records()]
            settle(store, report)
            assert [(found.state, found.error, found.fresh) for found in store.records()] == before

    def test_reports_on_one_job_are_taken_in_order(self, store: JobStore) -> None:
        starting(store)
        settle(store, started(), failed(), ended())
        assert ids(store) == set()
        assert store.outcome("d1", 0) == SUCCESS

    def test_nothing_settled_is_nothing_changed(self, store: JobStore) -> None:
        running(store)
        before = store.look({SLOT: 0})
        settle(store)
        settle(store, ended("unknown"), notes=["0-1"])
        assert store.look({SLOT: 0}) == before

    def test_the_revision_grows_with_each_change_and_a_record_keeps_the_one_of_its_own(self, store: JobStore) -> None:
        running(store)
        known = [revision(store)]
        for change in (
            lambda: note(store),
            lambda: queued(store, job("d2", key="k2")),
            lambda: reserved(store, "d2"),
            lambda: settle(store, failed("d2")),
            lambda: settle(store, notes=[store.look({SLOT: 0})[SLOT].notes[0].id]),
        ):
            change()
            known.append(revision(store))
        assert known == sorted(set(known))
        assert record(store).version == known[0]
        settle(store, failed())
        assert known[-1] < record(store).version == revision(store)
