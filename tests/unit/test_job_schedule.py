"""Schedules and tickers, on the memory store."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sticky import Job, Plan, Sticky
from celery_sticky.drivers import open_job_store
from celery_sticky.errors import (
    AssignmentFailed,
    JobExists,
    KeyspaceFull,
    NotPinned,
    StickyError,
    StoreRefused,
    StoreUnavailable,
)
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.info import BulkResult
from celery_sticky.jobs.schedule import AT_ONCE, Schedule, Ticker
from celery_sticky.stores.jobs import JobRecord, JobState
from celery_sticky.stores.memory.jobs import MemoryJobServer, memory_job_server
from celery_sticky.stores.ticks import Tick


@pytest.fixture
def sticky() -> Sticky:
    app = Celery("jobs", broker=f"memory://{uuid.uuid4().hex}", set_as_current=False)
    app.conf.update(sticky_slots=8, sticky_job_max_queued=5)
    return Sticky(app)


def schedule(function: Callable[[], Any] = list, every: float = 0.01, *, allow_empty: bool = False) -> Schedule:
    return Schedule("tenants", "default", "sync", every, function, allow_empty)


def job() -> Job:
    return Job(
        name="x", key="x", keyspace="default", id="", epoch=1, attempt=1, payload=None, worker="w",
        started=lambda: None, inbox=None, end=None, logger=None, saved=None, saves=None, ref=0,  # type: ignore[arg-type]
    )  # fmt: skip


def server_of(sticky: Sticky) -> MemoryJobServer:
    return memory_job_server(sticky.app.connection().hostname, sticky.settings.key_prefix)


def records(sticky: Sticky) -> Sequence[JobRecord]:
    """Return all records, also in an event loop."""
    return open_job_store(sticky.wiring.store_at, "default").records()


def wanted(sticky: Sticky) -> dict[str, Any]:
    found = [record for record in records(sticky) if record.name == "sync" and record.state is not JobState.STOPPING]
    return {record.key: json.loads(record.payload) for record in found}


def generations(sticky: Sticky) -> dict[str, int]:
    return {record.key: record.generation for record in records(sticky)}


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
    schedule(allow_empty=True).apply((), sticky.jobs)
    assert wanted(sticky) == {}


@pytest.mark.parametrize("nothing", [[], (), {}, set(), Plan(stop_all=True), Plan(stop=["a"], stop_all=True)], ids=str)
def test_a_result_without_keys_stops_many_jobs_only_if_that_is_allowed(
    sticky: Sticky, nothing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    schedule().apply(["a", "b", "c"], sticky.jobs)
    schedule().apply(nothing, sticky.jobs)
    assert wanted(sticky).keys() == {"a", "b", "c"}
    ((_, level, said),) = caplog.record_tuples
    assert level == logging.ERROR
    assert said.startswith("schedule 'tenants' has returned no keys, which would stop all 3 jobs 'sync' in keyspace")
    assert said.endswith("declare the schedule with allow_empty=True, or return Plan(stop=…)")
    schedule().apply(["b"], sticky.jobs)
    assert wanted(sticky).keys() == {"b"}, "a result with keys counts again"
    schedule().apply(nothing, sticky.jobs)
    assert wanted(sticky) == {}, "one job is not many"
    schedule().apply(["a", "b", "c"], sticky.jobs)
    schedule(allow_empty=True).apply(nothing, sticky.jobs)
    assert wanted(sticky) == {}
    assert len(caplog.records) == 1


def test_a_plan_may_stop_every_job_that_it_names(sticky: Sticky, caplog: pytest.LogCaptureFixture) -> None:
    schedule().apply(["a", "b", "c"], sticky.jobs)
    schedule().apply(Plan(), sticky.jobs)
    assert wanted(sticky).keys() == {"a", "b", "c"}
    schedule().apply(Plan(stop=["a", "b", "c"]), sticky.jobs)
    assert wanted(sticky) == {} and not caplog.records


def test_a_mapping_brings_payloads_and_updates_those_that_differ(sticky: Sticky) -> None:
    schedule().apply({"a": 1, "b": {"x": 1, "y": 2}}, sticky.jobs)
    assert wanted(sticky) == {"a": 1, "b": {"x": 1, "y": 2}}
    before = generations(sticky)
    schedule().apply({"a": 2, "b": {"y": 2, "x": 1}, "c": 2}, sticky.jobs)
    assert wanted(sticky) == {"a": 2, "b": {"x": 1, "y": 2}, "c": 2}
    assert generations(sticky) == {**before, "a": before["a"] + 1, "c": 0}
    schedule().apply({"a": 2, "b": object(), "c": 3}, sticky.jobs)
    assert wanted(sticky) == {"a": 2, "b": {"x": 1, "y": 2}, "c": 3}
    assert generations(sticky) == {**before, "a": before["a"] + 1, "c": 1}


def test_keys_without_payloads_leave_the_payloads_of_jobs_alone(sticky: Sticky) -> None:
    schedule().apply({"a": 1, "b": 1}, sticky.jobs)
    schedule().apply(["a", "b"], sticky.jobs)
    schedule().apply(Plan(start=["a"]), sticky.jobs)
    assert (wanted(sticky), set(generations(sticky).values())) == ({"a": 1, "b": 1}, {0})
    schedule().apply(Plan(start={"a": 2}), sticky.jobs)
    assert wanted(sticky) == {"a": 2, "b": 1}


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


def test_a_schedule_says_once_per_call_that_it_does_not_stop_all_and_goes_on(
    sticky: Sticky, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [["a", "b"], [], [], ["b", "c"]]
    calls: list[int] = []

    def function() -> list[str]:
        calls.append(1)
        return answers[min(len(calls), len(answers)) - 1]

    run_until(schedule(function).run(job(), lambda: sticky.jobs), lambda: wanted(sticky).keys() == {"b", "c"})
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize("allowed", [{}, {"allow_empty": False}, {"allow_empty": True}], ids=str)
def test_the_declaration_says_whether_a_schedule_may_stop_all(
    sticky: Sticky, caplog: pytest.LogCaptureFixture, allowed: dict[str, Any]
) -> None:
    schedule().apply(["a", "b"], sticky.jobs)
    sticky.schedule("tenants", every=0.1, job="sync", **allowed)(list)
    spec = sticky.wiring.declared.specs({"default"}, lambda: sticky.jobs).find("default", "schedule:tenants")
    assert spec is not None
    run: Any = spec.handler
    run_until(run(job()), lambda: not wanted(sticky) or "allow_empty=True" in caplog.text)
    assert wanted(sticky).keys() == (set() if allowed.get("allow_empty") else {"a", "b"})


def test_a_payload_that_cannot_be_sent_does_not_keep_others_from_starting(sticky: Sticky) -> None:
    schedule().apply({"a": 1, "b": object(), "c": 3}, sticky.jobs)
    assert wanted(sticky).keys() == {"a", "c"}


def test_many_jobs_are_dispatched_and_stopped_together(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "admit", None)
    monkeypatch.setattr(Jobs, "stop", None)
    schedule().apply({"a": 1, "b": 2, "c": 3}, sticky.jobs)
    schedule().apply(["c", "d"], sticky.jobs)
    assert wanted(sticky) == {"c": 3, "d": None}


def test_a_refusal_hinders_no_other_job_and_is_told(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    refusals: dict[str, StickyError] = {
        "b": JobExists("b exists"),
        "c": AssignmentFailed("c: assign raised"),
        "d": NotPinned("d: nobody"),
        "e": StoreRefused("e: full disk"),
        "f": AssignmentFailed("f: assign raised"),
        "g": KeyspaceFull("g: full"),
        "h": KeyspaceFull("h: full"),
    }
    admit_many = Jobs.admit_many

    def refusing(jobs: Jobs, name: str, wanted: dict[str, Any], **options: Any) -> BulkResult:
        result = admit_many(jobs, name, {key: wanted[key] for key in wanted if key not in refusals}, **options)
        return BulkResult(result.done, refusals)

    monkeypatch.setattr(Jobs, "admit_many", refusing)
    with pytest.raises(StoreRefused, match="full disk"):
        schedule().apply([*"abcdefghi"], sticky.jobs)
    assert wanted(sticky).keys() == {"a", "i"}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "schedule 'tenants': c: assign raised"),
        ("INFO", "schedule 'tenants': no job now: d: nobody"),
        ("ERROR", "schedule 'tenants': f: assign raised"),
        ("WARNING", "schedule 'tenants': g: full"),
    ]


def test_what_finds_no_room_is_not_sent_again_and_again(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []
    admit_many = Jobs.admit_many

    def counting(jobs: Jobs, name: str, wanted: dict[str, Any], **options: Any) -> BulkResult:
        asked.append(len(wanted))
        return admit_many(jobs, name, wanted, **options)

    monkeypatch.setattr(Jobs, "admit_many", counting)
    schedule().apply(range(3 * AT_ONCE), sticky.jobs)
    assert (asked, len(wanted(sticky))) == ([AT_ONCE], 5)
    (said,) = caplog.messages
    assert "5 jobs of keyspace 'default' wait for their start" in said


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

    claimed: list[bool] = []
    claim = sticky.jobs.claim_tick

    def counted(name: str, every: float, *, keyspace: str) -> Tick:
        tick = claim(name, every, keyspace=keyspace)
        claimed.append(tick.claimed)
        return tick

    sticky.jobs.claim_tick = counted  # type: ignore[method-assign]
    run_until(both(), lambda: len(ticks) >= 5)
    assert claimed.count(False) >= 3, "both have asked"
    assert abs(len(ticks) - claimed.count(True)) <= 1


def test_a_worker_whose_clock_is_ahead_silences_no_ticker(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[str] = []

    def ticker(name: str) -> Any:
        return Ticker("report", "default", 0.05, lambda: ticks.append(name)).run(job(), lambda: sticky.jobs)

    with monkeypatch.context() as patch:
        ahead = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
        patch.setattr("celery_sticky.jobs.schedule.time", ahead)
        run_until(ticker("ahead"), lambda: "ahead" in ticks)
    run_until(ticker("right"), lambda: ticks.count("right") >= 2)


@pytest.mark.parametrize("off", [-0.2, 0.2])
def test_a_ticker_sleeps_by_the_clock_of_the_store(sticky: Sticky, off: float) -> None:
    """The clock of the worker is almost half a period off."""
    began: list[float] = []
    server, every = server_of(sticky), 0.5
    server.clock = lambda: time.time() + off
    ticker = Ticker("report", "default", every, lambda: began.append(server.clock() % every))
    run_until(ticker.run(job(), lambda: sticky.jobs), lambda: len(began) >= 4)
    assert sorted(began[1:])[0] < 0.15, "soon after the beginning of a period"


def test_a_clock_of_the_store_that_was_set_back_silences_no_ticker(sticky: Sticky) -> None:
    ticks: list[int] = []
    ticker = Ticker("report", "default", 0.05, lambda: ticks.append(1))
    server = server_of(sticky)

    async def run() -> None:
        task = asyncio.create_task(ticker.run(job(), lambda: sticky.jobs))
        for ahead in (0, -3600):
            server.clock = lambda ahead=ahead: time.time() + ahead  # type: ignore[misc]
            before = len(ticks)
            while len(ticks) < before + 3:
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_while_the_store_is_away_a_ticker_asks_once_a_period(sticky: Sticky) -> None:
    asked: list[float] = []

    def away() -> Any:
        asked.append(time.time())
        raise StoreUnavailable("nobody answers")

    run_until(Ticker("report", "default", 0.2, lambda: None).run(job(), away), lambda: len(asked) > 3)
    assert asked[3] - asked[1] > 0.3


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
