"""The job store contract: jobs are updated, restarted, paused and resumed."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_sticky.stores.jobs import (
    STOPPED,
    DispatchOutcome,
    JobState,
    JobStore,
    NewJob,
    Report,
    RunResult,
    digest,
)
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT, SUCCESS
from celery_sticky.testing.store_contract.server import Opening, hear

Begin = Callable[[JobStore, NewJob], NewJob]
ALL = [steps.queued, steps.starting, steps.running, steps.failing]
JOB = (SLOT, "feed", "k")


def pausing(store: JobStore) -> None:
    """Have a running job that is to be paused."""
    steps.running(store)
    assert store.pause(*JOB) == "d1"
    assert steps.record(store).state is JobState.PAUSING


def paused(store: JobStore) -> None:
    """Have a job that ran and is paused."""
    pausing(store)
    steps.settle(store, Report("d1", RunResult.PAUSED))


class ControlContract(Opening[JobStore]):
    """Jobs are updated, restarted, paused and resumed."""

    # -- update and restart --------------------------------------------------------------------

    @pytest.mark.parametrize("begin", ALL)
    def test_an_update_gives_a_job_a_payload_and_a_generation_and_nothing_else(
        self, store: JobStore, other: JobStore, begin: Begin
    ) -> None:
        begin(store, steps.job())
        before = steps.record(store)
        assert other.update(*JOB, b"2", restart=True) == "d1"
        after = steps.record(store)
        assert (before.payload, before.generation) == (steps.job().payload, 0)
        assert (after.payload, after.generation) == (b"2", 1)
        assert (after.state, after.fresh, after.attempt, after.error) == (
            before.state,
            before.fresh,
            before.attempt,
            before.error,
        )
        assert after.version > before.version and steps.revision(store) == after.version

    def test_an_update_may_leave_the_run_alone_and_a_restart_the_payload(self, store: JobStore) -> None:
        steps.running(store)
        assert store.update(*JOB, b"2", restart=False) == "d1"
        assert (steps.record(store).payload, steps.record(store).generation) == (b"2", 0)
        assert store.update(*JOB, None, restart=True) == "d1"
        assert (steps.record(store).payload, steps.record(store).generation) == (b"2", 1)

    def test_a_repeated_dispatch_is_that_of_the_first_payload_also_after_an_update(self, store: JobStore) -> None:
        new = steps.running(store)
        store.update(*JOB, b"2", restart=True)
        assert steps.ask(store, new)[0].value == "repeated"
        assert steps.ask(store, steps.job(payload=b"2"))[0].value == "conflict"

    def test_each_key_of_a_name_has_the_digest_of_its_payload(self, store: JobStore) -> None:
        steps.running(store)
        steps.queued(store, steps.job("d2", key="k2", slot=1, payload=b"7"))
        steps.queued(store, steps.job("d3", name="other"))
        assert store.keys("feed") == {
            "k": digest("feed", "k", steps.job().payload),
            "k2": digest("feed", "k2", b"7"),
        }
        store.update(*JOB, b"8", restart=False)
        assert store.keys("feed")["k"] == digest("feed", "k", b"8")

    # -- pause and resume ----------------------------------------------------------------------

    def test_a_job_that_never_ran_is_paused_at_once(self, store: JobStore) -> None:
        steps.queued(store)
        assert store.pause(*JOB) == "d1"
        found = steps.record(store)
        assert (found.state, found.fresh) == (JobState.PAUSED, True)
        store.open(SLOT, EPOCH)
        assert not store.reserve(SLOT, EPOCH, "w1", ["d1"]).attempts
        assert store.resume(*JOB) == "d1"
        steps.reserved(store, "d1")

    def test_a_job_is_paused_when_its_owner_says_so(self, store: JobStore) -> None:
        pausing(store)
        steps.note(store)
        assert not store.reserve(SLOT, EPOCH, "w1", ["d1"]).attempts
        steps.settle(store, Report("d1", RunResult.PAUSED))
        found = steps.record(store)
        assert (found.state, found.epoch, found.worker, found.attempt) == (JobState.PAUSED, 0, "", 1)
        assert steps.notes(store) == [b"{}"]
        assert not store.reserve(SLOT, EPOCH, "w1", ["d1"]).attempts

    @pytest.mark.parametrize("report", [steps.started(), steps.failed()], ids=lambda report: report.result)
    @pytest.mark.parametrize("begin", [pausing, paused])
    def test_a_late_report_of_a_run_does_not_end_a_pause(
        self, store: JobStore, begin: Callable[[JobStore], None], report: Report
    ) -> None:
        begin(store)
        before = steps.record(store).state
        steps.settle(store, report)
        assert steps.record(store).state is before
        steps.settle(store, Report("d1", RunResult.PAUSED))
        assert steps.record(store).state is JobState.PAUSED

    def test_a_job_that_is_not_to_be_paused_is_not(self, store: JobStore) -> None:
        steps.running(store)
        steps.settle(store, Report("d1", RunResult.PAUSED))
        assert steps.record(store).state is JobState.RUNNING

    def test_a_pause_and_a_resume_may_be_repeated(self, store: JobStore) -> None:
        pausing(store)
        before = store.look({SLOT: 0})
        assert store.pause(*JOB) == "d1"
        assert store.look({SLOT: 0}) == before
        assert (store.resume(*JOB), store.resume(*JOB)) == ("d1", "d1")
        assert steps.record(store).generation == 1

    def test_a_job_that_is_resumed_while_its_run_may_be_left_is_one_of_the_next_generation(
        self, store: JobStore
    ) -> None:
        pausing(store)
        store.resume(*JOB)
        found = steps.record(store)
        assert (found.state, found.generation, found.epoch) == (JobState.QUEUED, 1, EPOCH)
        store.pause(*JOB)
        assert steps.record(store).state is JobState.PAUSING
        store.resume(*JOB)
        store.stop(*JOB)
        assert steps.record(store).state is JobState.STOPPING

    def test_a_job_that_is_resumed_keeps_what_it_had(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        store.pause(*JOB)
        store.update(*JOB, b"2", restart=False)
        steps.settle(store, Report("d1", RunResult.PAUSED))
        store.resume(*JOB)
        found = steps.record(store)
        assert (found.id, found.payload, found.state, found.fresh) == ("d1", b"2", JobState.QUEUED, False)
        assert store.reserve(SLOT, EPOCH, "w1", ["d1"]).attempts == {"d1": 2}
        assert steps.notes(store) == [b"{}"]

    @pytest.mark.parametrize("fresh", [False, True])
    def test_a_paused_job_is_stopped_at_once(self, store: JobStore, fresh: bool) -> None:
        if fresh:
            steps.queued(store)
            store.pause(*JOB)
        else:
            paused(store)
        assert store.stop(*JOB) == "d1"
        assert (steps.ids(store), store.ending()) == (set(), 0)
        assert store.outcome("d1", 0) == (DispatchOutcome(STOPPED) if fresh else SUCCESS)

    def test_a_job_that_is_being_paused_is_stopped_by_its_owner(self, store: JobStore) -> None:
        pausing(store)
        assert store.stop(*JOB) == "d1"
        assert (steps.record(store).state, store.ending()) == (JobState.STOPPING, 1)

    def test_a_job_that_waits_for_an_old_run_is_paused_by_its_owner(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, steps.job("d2"))
        store.pause(*JOB)
        assert (steps.record(store, "d2").state, store.ending()) == (JobState.PAUSING, 1)
        steps.settle(store, Report("d2", RunResult.PAUSED))
        assert (steps.record(store, "d2").state, store.ending()) == (JobState.PAUSED, 0)

    @pytest.mark.parametrize("begin", [steps.queued, steps.stopping])
    def test_what_is_not_there_or_is_stopping_cannot_be_changed(self, store: JobStore, begin: Begin) -> None:
        begin(store, steps.job("d1", key="k" if begin is steps.stopping else "k2"))
        before = store.look({SLOT: 0})
        assert store.update(*JOB, b"2", restart=True) is None
        assert store.pause(*JOB) is None and store.resume(*JOB) is None
        assert store.look({SLOT: 0}) == before

    def test_every_change_is_signalled(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        other.watch(0)
        changes: list[Callable[[], object]] = [
            lambda: store.update(*JOB, b"2", restart=False),
            lambda: store.update(*JOB, None, restart=True),
            lambda: store.pause(*JOB),
            lambda: store.resume(*JOB),
        ]
        for change in changes:
            change()
            hear(other, SLOT)
