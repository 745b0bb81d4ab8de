"""The job store contract: the effect of an owner's report on a job."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import pytest

from celery_sticky.stores.jobs import DispatchOutcome, JobState, JobStore, Report, RunResult
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT, SUCCESS
from celery_sticky.testing.store_contract.server import Opening


class RunContract(Opening[JobStore]):
    """The effect of an owner's report on a job."""

    def test_a_job_that_has_started_runs_and_is_no_longer_fresh(self, store: JobStore) -> None:
        steps.starting(store)
        before = steps.record(store)
        steps.settle(store, steps.started())
        after = steps.record(store)
        assert (after.state, after.fresh, after.error) == (JobState.RUNNING, False, "")
        assert (after.attempt, after.worker, after.epoch) == (before.attempt, before.worker, before.epoch)
        assert after.payload == before.payload
        assert after.version > before.version

    def test_a_failed_first_start_removes_the_job_and_its_notes(self, store: JobStore) -> None:
        steps.starting(store)
        steps.note(store)
        steps.settle(store, steps.failed())
        assert steps.ids(store) == set()
        assert steps.notes(store) == []
        assert store.outcome("d1", 0) == DispatchOutcome("boom")
        steps.queued(store, steps.job("d2"))

    def test_a_failed_start_of_a_job_that_has_run_keeps_it_with_payload_and_notes(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        steps.reserved(store, "d1")
        steps.settle(store, steps.failed(error="bøom"))
        found = steps.record(store)
        assert (found.state, found.error, found.fresh) == (JobState.FAILING, "bøom", False)
        assert (found.payload, found.attempt) == (steps.job().payload, 2)
        assert steps.notes(store) == [b"{}"]
        assert store.outcome("d1", 0) == SUCCESS

    def test_a_run_that_ends_with_an_error_is_failing(self, store: JobStore) -> None:
        steps.running(store)
        steps.settle(store, steps.failed())
        assert (steps.record(store).state, steps.record(store).error) == (JobState.FAILING, "boom")

    def test_the_error_and_the_counts_stay_until_the_job_has_run_well_for_a_while(self, store: JobStore) -> None:
        steps.failing(store)
        steps.settle(store, Report("d1", RunResult.FAILED, "bang", failures=2, strikes=3, apart=True))
        steps.reserved(store, "d1")
        steps.settle(store, steps.started())
        found = steps.record(store)
        assert (found.state, found.error, found.failures) == (JobState.RUNNING, "bang", 2)
        assert (found.strikes, found.apart) == (3, True)
        steps.settle(store, Report("d1", RunResult.SETTLED))
        found = steps.record(store)
        assert (found.state, found.error, found.failures) == (JobState.RUNNING, "", 0)
        assert (found.strikes, found.apart) == (3, False), "so that the next strike weighs more"

    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_start_of_a_job_that_is_to_stop_leaves_it_so(self, store: JobStore, fresh: bool) -> None:
        steps.stopping(store, fresh=fresh)
        steps.settle(store, steps.started())
        assert (steps.record(store).state, steps.record(store).fresh) == (JobState.STOPPING, False)
        assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize("report", [steps.failed(), steps.ended(), steps.ended(error="boom")])
    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_job_that_is_to_stop_goes_with_the_end_of_its_run(
        self, store: JobStore, report: Report, fresh: bool
    ) -> None:
        steps.stopping(store, fresh=fresh)
        steps.settle(store, report)
        assert steps.ids(store) == set()
        assert store.outcome("d1", 0) == (DispatchOutcome(report.error) if fresh else SUCCESS)

    def test_a_job_that_ends_by_itself_goes_with_its_notes(self, store: JobStore) -> None:
        steps.running(store)
        steps.running(store, steps.job("d2", key="k2"))
        steps.note(store)
        steps.note(store, b"2", to=steps.job(key="k2"))
        steps.settle(store, steps.ended())
        assert steps.ids(store) == {"d2"}
        assert steps.notes(store) == [b"2"]

    def test_ids_that_are_no_records_are_passed_over(self, store: JobStore) -> None:
        steps.starting(store)
        steps.queued(store, steps.job("elsewhere", key="k2", slot=SLOT + 1))
        steps.settle(
            store, steps.failed("unknown"), steps.ended("elsewhere"), steps.started("d1"), steps.started("unknown")
        )
        assert steps.ids(store) == {"d1", "elsewhere"}
        assert steps.record(store).state is JobState.RUNNING
        assert steps.record(store, "elsewhere").state is JobState.QUEUED
        assert store.outcome("unknown", 0) is None

    def test_reports_may_be_repeated(self, store: JobStore) -> None:
        steps.starting(store)
        for report in (steps.started(), steps.failed(), steps.ended()):
            steps.settle(store, report)
            before = [(found.state, found.error, found.fresh) for found in store.records()]
            steps.settle(store, report)
            assert [(found.state, found.error, found.fresh) for found in store.records()] == before

    def test_reports_on_one_job_are_taken_in_order(self, store: JobStore) -> None:
        steps.starting(store)
        steps.settle(store, steps.started(), steps.failed(), steps.ended())
        assert steps.ids(store) == set()
        assert store.outcome("d1", 0) == SUCCESS

    def test_nothing_settled_is_nothing_changed(self, store: JobStore) -> None:
        steps.running(store)
        before = store.look({SLOT: 0})
        steps.settle(store)
        steps.settle(store, steps.ended("unknown"), notes=["0-1"])
        assert store.look({SLOT: 0}) == before

    def test_the_revision_grows_with_each_change_and_a_record_keeps_the_one_of_its_own(self, store: JobStore) -> None:
        steps.running(store)
        known = [steps.revision(store)]
        for change in (
            lambda: steps.note(store),
            lambda: steps.queued(store, steps.job("d2", key="k2")),
            lambda: steps.reserved(store, "d2"),
            lambda: steps.settle(store, steps.failed("d2")),
            lambda: steps.settle(store, notes=[store.look({SLOT: 0})[SLOT].notes[0].id]),
        ):
            change()
            known.append(steps.revision(store))
        assert known == sorted(set(known))
        assert steps.record(store).version == known[0]
        steps.settle(store, steps.failed())
        assert known[-1] < steps.record(store).version == steps.revision(store)
