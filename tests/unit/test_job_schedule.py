"""Schedules and tickers, on the memory store."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from celery_sticky import Job, Plan, Sticky
from celery_sticky.errors import StoreUnavailable
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.schedule import Schedule, Ticker


@pytest.fixture
def sticky() -> Sticky:
    app = Celery("jobs", broker=f"memory://{uuid.uuid4().hex}", set_as_current=False)
    app.conf.update(sticky_slots=8, sticky_job_max_queued=5)
    return Sticky(app)


def schedule(function: Callable[[], Any] = list, every: float = 0.01) -> Schedule:
    return Schedule("tenants", "default", "sync", every, function)


def job() -> Job:
    return Job(
        name="x", key="x", keyspace="default", id="", epoch=1, attempt=1, payload=None, worker="w",
        started=lambda: None, taken=lambda _: None, logger=None,  # type: ignore[arg-type]
    )  # fmt: skip


def wanted(sticky: Sticky) -> dict[str, Any]:
    return {info.key: info.payload for info in sticky.jobs.list("sync") if info.state != "stopping"}


def run_until(coroutine: Any, done: Callable[[], bool]) -> None:
    async def run() -> None:
        task = asyncio.create_task(coroutine)
        while not done():
            assert not task.done(), task.exception()
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))


# -- what a plan changes ---------------------------------------------------------------------------


def test_keys_that_are_returned_should_have_a_job_and_no_others(sticky: Sticky) -> None:
    schedule().apply(["a", "b", 3], sticky.jobs)
    assert wanted(sticky) == {"a": None, "b": None, "3": None}
    schedule().apply({"b", "c"}, sticky.jobs)
    assert wanted(sticky) == {"b": None, "c": None}
    schedule().apply((), sticky.jobs)
    assert wanted(sticky) == {}


def test_a_mapping_brings_payloads_and_a_job_that_is_there_keeps_its_own(sticky: Sticky) -> None:
    schedule().apply({"a": 1}, sticky.jobs)
    (before,) = sticky.jobs.list("sync")
    schedule().apply({"a": 2, "b": 2}, sticky.jobs)
    assert wanted(sticky) == {"a": 1, "b": 2}
    assert sticky.jobs.get("sync", "a") == before, "it was not touched"


def test_a_plan_leaves_what_it_does_not_name(sticky: Sticky) -> None:
    schedule().apply(["a", "b"], sticky.jobs)
    schedule().apply(Plan(start=["c"], stop=["a", "nobody"]), sticky.jobs)
    assert wanted(sticky).keys() == {"b", "c"}
    schedule().apply(Plan(start=["c"], stop=["c"]), sticky.jobs)
    assert wanted(sticky).keys() == {"b", "c"}, "what is to start is not to stop"
    schedule().apply(Plan(start=["d"], stop_all=True), sticky.jobs)
    assert wanted(sticky).keys() == {"d"}


def test_jobs_of_another_name_are_left_alone(sticky: Sticky) -> None:
    sticky.jobs.admit("other", "a")
    schedule().apply(["b"], sticky.jobs)
    schedule().apply([], sticky.jobs)
    assert [info.name for info in sticky.jobs.list()] == ["other"]


def test_what_cannot_start_for_want_of_room_starts_next_time(sticky: Sticky) -> None:
    schedule().apply([f"k{n}" for n in range(8)], sticky.jobs)
    assert len(wanted(sticky)) == 5
    for key in list(wanted(sticky)):
        sticky.jobs.stop("sync", key)
    schedule().apply(["k7"], sticky.jobs)
    assert wanted(sticky).keys() == {"k7"}


def test_a_keyspace_that_is_shut_down_stays_so(sticky: Sticky) -> None:
    sticky.jobs.shutdown()
    schedule().apply(["a"], sticky.jobs)
    assert wanted(sticky) == {}


@pytest.mark.parametrize("returned", [None, 7, "tenants"])
def test_what_is_no_plan_is_refused_and_changes_nothing(sticky: Sticky, returned: Any) -> None:
    schedule().apply(["a"], sticky.jobs)
    with pytest.raises(TypeError, match="must return keys, a mapping of key to payload, or a Plan"):
        schedule().apply(returned, sticky.jobs)
    assert wanted(sticky).keys() == {"a"}


# -- how it is called ------------------------------------------------------------------------------


def test_a_schedule_is_called_again_and_again_also_when_it_raises(
    sticky: Sticky, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def function() -> list[str]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the database is away")
        return ["a"]

    run_until(schedule(function).run(job(), lambda: sticky.jobs), lambda: len(calls) > 2 and "a" in wanted(sticky))
    assert "schedule 'tenants' has failed; trying again" in caplog.text


@pytest.fixture
def away_at_first(sticky: Sticky) -> Callable[[], Any]:
    asked: list[int] = []

    def jobs() -> Any:
        asked.append(1)
        if len(asked) <= 3:
            raise StoreUnavailable("nobody answers")
        return sticky.jobs

    return jobs


def test_a_schedule_goes_on_when_the_store_was_away_and_says_so_once(
    sticky: Sticky, away_at_first: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def function() -> list[str]:
        return ["a"]

    run_until(schedule(function).run(job(), away_at_first), lambda: "again, after" in caplog.text)
    assert wanted(sticky).keys() == {"a"}
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("schedule 'tenants': the store does not answer: nobody answers")
    assert last.startswith("schedule 'tenants': the store answers again, after")


def test_a_schedule_reads_keys_and_not_the_jobs(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule().apply(["a", "b"], sticky.jobs)
    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "list", None)
        schedule().apply(["b", "c"], sticky.jobs)
    assert wanted(sticky).keys() == {"b", "c"}


def test_a_payload_that_cannot_be_sent_does_not_keep_others_from_starting(sticky: Sticky) -> None:
    schedule().apply({"a": 1, "b": object(), "c": 3}, sticky.jobs)
    assert wanted(sticky).keys() == {"a", "c"}


def test_a_function_that_runs_when_its_slot_goes_comes_to_its_end_first(sticky: Sticky) -> None:
    """Guards: cancelled, a thread goes on, and the next owner would call the function beside it."""
    began, go_on = threading.Event(), threading.Event()

    def function() -> list[str]:
        began.set()
        assert go_on.wait(20)
        return []

    async def run() -> None:
        task = asyncio.create_task(schedule(function).run(job(), lambda: sticky.jobs))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Schedule, Ticker])
def test_one_that_takes_long_and_jobs_do_not_wait_for_each_others_threads(sticky: Sticky, kind: type) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def function() -> list[str]:
        began.set()
        assert go_on.wait(60)
        return []

    slow = schedule(function) if kind is Schedule else Ticker("slow", "default", 0.1, function)

    async def called() -> None:
        while not began.is_set():
            await asyncio.sleep(0.001)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        task = asyncio.create_task(slow.run(job(), lambda: sticky.jobs))
        try:
            await called()
            await asyncio.wait_for(asyncio.to_thread(int), 10)
            occupied = asyncio.create_task(asyncio.to_thread(ended.wait, 60))
            began.clear()
            go_on.set()
            await asyncio.wait_for(called(), 10)
            ended.set()
            await occupied
        finally:
            go_on.set()
            ended.set()
            task.cancel()

    asyncio.run(run())


def test_a_ticker_ticks_on_when_its_interval_was_made_longer(sticky: Sticky) -> None:
    ticks: list[str] = []
    for every in (0.05, 0.2):
        ticker = Ticker("report", "default", every, lambda every=every: ticks.append(every))  # type: ignore[misc]
        run_until(ticker.run(job(), lambda: sticky.jobs), lambda every=every: ticks.count(every) >= 2)  # type: ignore[misc]


def test_a_tick_is_run_once_by_who_is_first(sticky: Sticky) -> None:
    ticks: list[str] = []

    def ticker(name: str) -> Any:
        return Ticker("report", "default", 0.05, lambda: ticks.append(name)).run(job(), lambda: sticky.jobs)

    async def both() -> None:
        await asyncio.gather(ticker("one"), ticker("two"))

    claimed: list[int] = []
    claim = sticky.jobs.claim_tick

    def counted(name: str, number: int, *, keyspace: str) -> bool:
        won = claim(name, number, keyspace=keyspace)
        claimed.extend([number] if won else [])
        return won

    sticky.jobs.claim_tick = counted  # type: ignore[method-assign]
    run_until(both(), lambda: len(ticks) >= 5)
    assert len(claimed) == len(set(claimed)), "no tick twice"
    assert claimed == sorted(claimed)
    assert abs(len(ticks) - len(claimed)) <= 1


def test_a_ticker_that_raises_ticks_on(sticky: Sticky, caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[int] = []

    def function() -> None:
        ticks.append(1)
        raise ValueError("no report")

    run_until(Ticker("report", "default", 0.02, function).run(job(), lambda: sticky.jobs), lambda: len(ticks) > 2)
    assert "ticker 'report' has failed" in caplog.text


def test_a_ticker_whose_own_function_meets_a_store_that_is_away_has_failed_and_lost_no_tick(
    sticky: Sticky, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[int] = []

    def function() -> None:
        ticks.append(1)
        raise StoreUnavailable("no answer")

    run_until(Ticker("report", "default", 0.02, function).run(job(), lambda: sticky.jobs), lambda: len(ticks) > 2)
    assert "ticker 'report' has failed" in caplog.text and "lost" not in caplog.text


def test_a_ticker_ticks_on_when_the_store_was_away_and_says_so_once(
    away_at_first: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticker = Ticker("report", "default", 0.02, lambda: None)
    run_until(ticker.run(job(), away_at_first), lambda: "again, after" in caplog.text)
    assert len(caplog.records) == 2
