"""The job store contract: how a start went, for those who wait and those who ask again."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_sticky.stores.jobs import STOPPED, Admission, JobStore, NewJob, Outcome, Report
from celery_sticky.testing.job_store_contract.steps import (
    SUCCESS,
    OpenJobs,
    ask,
    ended,
    failed,
    ids,
    job,
    queued,
    record,
    reserved,
    running,
    settle,
    started,
    starting,
    stopping,
)
from celery_sticky.testing.store_contract.server import PATIENCE, Opening
from celery_sticky.testing.waiting import wait_until

OTHERS = [job(name="other"), job(key="other"), job(payload=b"other")]


class OutcomeContract(Opening[JobStore]):
    """How a start went, for those who wait and those who ask again."""

    @pytest.mark.parametrize(
        ("report", "outcome"),
        [
            (started(), SUCCESS),
            (failed(), Outcome("boom")),
            (failed(error="größer\n"), Outcome("größer\n")),
            (ended(), SUCCESS),
            (ended(error="gone"), Outcome("gone")),
        ],
    )
    def test_the_first_report_on_a_fresh_job_is_its_outcome(
        self, store: JobStore, other: JobStore, report: Report, outcome: Outcome
    ) -> None:
        starting(store)
        assert other.outcome("d1", 0) is None
        settle(store, report)
        assert other.outcome("d1", 0) == outcome
        assert other.outcome("d1", PATIENCE) == outcome

    def test_no_later_report_is_an_outcome(self, store: JobStore) -> None:
        running(store)
        for report in (failed(), started(), ended(error="gone")):
            settle(store, report)
            assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize("report", [started(), failed(), ended(error="gone")], ids=lambda report: report.verdict)
    def test_no_later_report_makes_the_outcome_last(self, store: JobStore, report: Report) -> None:
        starting(store)
        settle(store, started(), ttl=0.05)
        wait_until(lambda: store.outcome("d1", 0) is None)
        settle(store, report)
        assert store.outcome("d1", 0) is None

    def test_a_wait_ends_with_the_outcome(self, store: JobStore, other: JobStore) -> None:
        starting(store)
        settler = threading.Timer(0.1, settle, [store, failed()])
        settler.start()
        before = time.monotonic()
        assert other.outcome("d1", PATIENCE) == Outcome("boom")
        assert time.monotonic() - before < PATIENCE / 2
        settler.join()

    def test_a_wait_without_an_outcome_ends_after_its_time(self, store: JobStore) -> None:
        starting(store)
        before = time.monotonic()
        assert store.outcome("d1", 0.2) is None
        assert time.monotonic() - before >= 0.19
        assert store.outcome("nobody's", 0) is None

    def test_outcomes_are_told_apart_by_their_id(self, store: JobStore) -> None:
        starting(store, job("d:1"))
        starting(store, job("d", key="k2"))
        settle(store, failed("d:1"), started("d"))
        assert store.outcome("d:1", 0) == Outcome("boom")
        assert store.outcome("d", 0) == SUCCESS

    def test_a_repeated_dispatch_gets_the_outcome_of_the_first(self, store: JobStore, other: JobStore) -> None:
        new = starting(store)
        settle(store, failed())
        assert ask(other, new) == (Admission.REPEATED, Outcome("boom"))
        assert ids(store) == set()

    def test_repeats_while_it_pends_wait_for_the_one_outcome(self, store: JobStore, open_store: OpenJobs) -> None:
        new = starting(store)
        waiters = [open_store() for _ in range(5)]
        asked = threading.Barrier(len(waiters) + 1)

        def repeat(client: JobStore) -> tuple[Admission, Outcome | None]:
            admission, known = ask(client, new)
            assert known is None
            asked.wait(PATIENCE)
            return admission, client.outcome(new.id, PATIENCE)

        with ThreadPoolExecutor(len(waiters)) as threads:
            answers = threads.map(repeat, waiters)
            asked.wait(PATIENCE)
            settle(store, failed())
            assert set(answers) == {(Admission.REPEATED, Outcome("boom"))}

    def test_a_job_that_runs_has_started_well_also_when_its_outcome_is_kept_no_more(self, store: JobStore) -> None:
        new = starting(store)
        settle(store, started(), ttl=0.05)
        wait_until(lambda: store.outcome("d1", 0) is None)
        assert ask(store, new) == (Admission.REPEATED, SUCCESS)
        settle(store, failed())
        assert ask(store, new) == (Admission.REPEATED, SUCCESS)
        assert ids(store) == {"d1"}

    @pytest.mark.parametrize("another", OTHERS)
    @pytest.mark.parametrize("done", [False, True])
    def test_an_id_used_for_another_job_or_payload_conflicts_and_changes_nothing(
        self, store: JobStore, another: NewJob, done: bool
    ) -> None:
        starting(store)
        if done:
            settle(store, failed())
        before = list(store.records())
        assert ask(store, another) == (Admission.CONFLICT, None)
        assert list(store.records()) == before
        assert store.outcome("d1", 0) == (Outcome("boom") if done else None)

    def test_after_its_time_the_id_of_a_failed_start_is_admitted_anew(self, store: JobStore) -> None:
        new = starting(store)
        settle(store, failed(), ttl=0.05)
        wait_until(lambda: ask(store, new)[0] is Admission.ADMITTED)
        assert store.outcome("d1", 0) is None
        reserved(store, "d1")
        assert record(store).attempt == 1
        settle(store, started())
        assert store.outcome("d1", 0) == SUCCESS

    @pytest.mark.parametrize("closes", [False, True])
    def test_the_outcome_of_a_stop_is_kept_as_long_as_the_dispatch_wants(self, store: JobStore, closes: bool) -> None:
        short, long = queued(store, ttl=0.05), queued(store, job("d2", key="k2"), ttl=60)
        if closes:
            store.close_keyspace(closed=True)
            store.close_keyspace(closed=False)
        else:
            assert all(store.stop(new.slot, new.name, new.key) for new in (short, long))
        assert store.outcome("d2", 0) == Outcome(STOPPED)
        wait_until(lambda: ask(store, short)[0] is Admission.ADMITTED)
        assert ask(store, long) == (Admission.REPEATED, Outcome(STOPPED))

    def test_a_fresh_job_that_was_replaced_is_told_that_it_was_stopped(self, store: JobStore) -> None:
        stopping(store, fresh=True)
        queued(store, job("d2"))
        assert store.outcome("d1", 0) == Outcome(STOPPED)
        assert store.outcome("d2", 0) is None

    def test_a_started_job_that_was_replaced_keeps_its_outcome(self, store: JobStore) -> None:
        stopping(store)
        queued(store, job("d2"))
        assert store.outcome("d1", 0) == SUCCESS
