"""The job store contract: the outcome of a start, for callers that wait or ask again."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_sticky.stores.jobs import STOPPED, Admission, DispatchOutcome, JobStore, NewJob, Report
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SUCCESS, OpenJobs
from celery_sticky.testing.store_contract.server import TIMEOUT, Opening
from celery_sticky.testing.waiting import wait_until

OTHERS = [steps.job(name="other"), steps.job(key="other"), steps.job(payload=b"other")]


class OutcomeContract(Opening[JobStore]):
    """The outcome of a start, for callers that wait or ask again."""

    @pytest.mark.parametrize(
        ("report", "outcome"),
        [
            (steps.started(), SUCCESS),
            (steps.failed(), DispatchOutcome("boom")),
            (steps.failed(error="größer\n"), DispatchOutcome("größer\n")),
            (steps.ended(), SUCCESS),
            (steps.ended(error="gone"), DispatchOutcome("gone")),
        ],
    )
    def test_the_first_report_on_a_fresh_job_is_its_outcome(
        self, store: JobStore, other: JobStore, report: Report, outcome: DispatchOutcome
    ) -> None:
        steps.starting(store)
        assert other.outcome("d1", 0) is None
        steps.settle(store, report)
        assert other.outcome("d1", 0) == outcome
        assert other.outcome("d1", TIMEOUT) == outcome

    def test_no_later_report_is_an_outcome(self, store: JobStore) -> None:
        steps.running(store)
        for report in (steps.failed(), steps.started(), steps.ended(error="gone")):
            steps.settle(store, report)
            assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize(
        "report", [steps.started(), steps.failed(), steps.ended(error="gone")], ids=lambda report: report.result
    )
    def test_no_later_report_makes_the_outcome_last(self, store: JobStore, report: Report) -> None:
        steps.starting(store)
        steps.settle(store, steps.started(), ttl=0.05)
        wait_until(lambda: store.outcome("d1", 0) is None)
        steps.settle(store, report)
        assert store.outcome("d1", 0) is None

    def test_a_wait_ends_with_the_outcome(self, store: JobStore, other: JobStore) -> None:
        steps.starting(store)
        settler = threading.Timer(0.1, steps.settle, [store, steps.failed()])
        settler.start()
        before = time.monotonic()
        assert other.outcome("d1", TIMEOUT) == DispatchOutcome("boom")
        assert time.monotonic() - before < TIMEOUT / 2
        settler.join()

    def test_a_wait_without_an_outcome_ends_after_its_time(self, store: JobStore) -> None:
        steps.starting(store)
        before = time.monotonic()
        assert store.outcome("d1", 0.2) is None
        assert time.monotonic() - before >= 0.19
        assert store.outcome("nobody's", 0) is None

    def test_outcomes_are_told_apart_by_their_id(self, store: JobStore) -> None:
        steps.starting(store, steps.job("d:1"))
        steps.starting(store, steps.job("d", key="k2"))
        steps.settle(store, steps.failed("d:1"), steps.started("d"))
        assert store.outcome("d:1", 0) == DispatchOutcome("boom")
        assert store.outcome("d", 0) == SUCCESS

    def test_a_repeated_dispatch_gets_the_outcome_of_the_first(self, store: JobStore, other: JobStore) -> None:
        new = steps.starting(store)
        steps.settle(store, steps.failed())
        assert steps.ask(other, new) == (Admission.REPEATED, DispatchOutcome("boom"))
        assert steps.ids(store) == set()

    def test_repeats_while_it_pends_wait_for_the_one_outcome(self, store: JobStore, open_store: OpenJobs) -> None:
        new = steps.starting(store)
        waiters = [open_store() for _ in range(5)]
        asked = threading.Barrier(len(waiters) + 1)

        def repeat(client: JobStore) -> tuple[Admission, DispatchOutcome | None]:
            admission, known = steps.ask(client, new)
            assert known is None
            asked.wait(TIMEOUT)
            return admission, client.outcome(new.id, TIMEOUT)

        with ThreadPoolExecutor(len(waiters)) as threads:
            answers = threads.map(repeat, waiters)
            asked.wait(TIMEOUT)
            steps.settle(store, steps.failed())
            assert set(answers) == {(Admission.REPEATED, DispatchOutcome("boom"))}

    def test_a_job_that_runs_has_started_well_also_when_its_outcome_is_kept_no_more(self, store: JobStore) -> None:
        new = steps.starting(store)
        steps.settle(store, steps.started(), ttl=0.05)
        wait_until(lambda: store.outcome("d1", 0) is None)
        assert steps.ask(store, new) == (Admission.REPEATED, SUCCESS)
        steps.settle(store, steps.failed())
        assert steps.ask(store, new) == (Admission.REPEATED, SUCCESS)
        assert steps.ids(store) == {"d1"}

    @pytest.mark.parametrize("another", OTHERS)
    @pytest.mark.parametrize("done", [False, True])
    def test_an_id_used_for_another_job_or_payload_conflicts_and_changes_nothing(
        self, store: JobStore, another: NewJob, done: bool
    ) -> None:
        steps.starting(store)
        if done:
            steps.settle(store, steps.failed())
        before = list(store.records())
        assert steps.ask(store, another) == (Admission.CONFLICT, None)
        assert list(store.records()) == before
        assert store.outcome("d1", 0) == (DispatchOutcome("boom") if done else None)

    def test_after_its_time_the_id_of_a_failed_start_is_admitted_again(self, store: JobStore) -> None:
        new = steps.starting(store)
        steps.settle(store, steps.failed(), ttl=0.05)
        wait_until(lambda: steps.ask(store, new)[0] is Admission.ADMITTED)
        assert store.outcome("d1", 0) is None
        steps.reserved(store, "d1")
        assert steps.record(store).attempt == 1
        steps.settle(store, steps.started())
        assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize("closes", [False, True])
    def test_the_outcome_of_a_stop_is_kept_as_long_as_the_dispatch_wants(self, store: JobStore, closes: bool) -> None:
        short, long = steps.queued(store, ttl=0.05), steps.queued(store, steps.job("d2", key="k2"), ttl=60)
        if closes:
            store.close_keyspace(closed=True)
            store.close_keyspace(closed=False)
        else:
            assert all(store.stop(new.slot, new.name, new.key) for new in (short, long))
        assert store.outcome("d2", 0) == DispatchOutcome(STOPPED)
        wait_until(lambda: steps.ask(store, short)[0] is Admission.ADMITTED)
        assert steps.ask(store, long) == (Admission.REPEATED, DispatchOutcome(STOPPED))

    def test_a_fresh_job_that_was_replaced_is_told_that_it_was_stopped(self, store: JobStore) -> None:
        steps.stopping(store, fresh=True)
        steps.queued(store, steps.job("d2"))
        assert store.outcome("d1", 0) == DispatchOutcome(STOPPED)
        assert store.outcome("d2", 0) is None

    def test_a_started_job_that_was_replaced_keeps_its_outcome(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, steps.job("d2"))
        assert store.outcome("d1", 0) == SUCCESS
