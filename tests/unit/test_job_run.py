"""The life of a job in an event loop: what the worker is told of a start, of notifications, of a stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

from celery_sticky.jobs.handler import Job, JobHandler, JobSpec
from celery_sticky.jobs.host import run as run_module
from celery_sticky.jobs.host.run import Answer, HostedRun, Surroundings, begin
from celery_sticky.jobs.wire import Ended, Failed, Noted, Start, Started

LOGGER = logging.getLogger("test.jobs")


async def returns(job: Job) -> None:
    """Does nothing."""


class Starts(JobHandler):
    """Does nothing but start."""

    async def start(self, job: Job) -> None:
        """See `JobHandler`."""


# -- the bench -------------------------------------------------------------------------------------


class Bench:
    """Runs jobs in the running loop."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.answers: list[Answer] = []
        self._here = Surroundings(self.answers.append, threads, LOGGER)

    def begin(self, handler: Any, payload: Any = None) -> HostedRun:
        start = Start(7, "crm", "k1", "default", "id1", 3, 2, payload, 1)
        return begin(JobSpec("crm", "default", handler), start, self._here)

    async def heard(self, *answers: Answer) -> None:
        """Wait for these answers, and see that there are no others."""
        await until(lambda: len(self.answers) >= len(answers), f"{self.answers} become {answers}")
        await asyncio.sleep(0.01)
        assert self.answers == list(answers)


async def until(condition: Callable[[], Any], what: str = "") -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4, "job") as pool:
        yield pool


Scenario = Callable[[Bench], Awaitable[None]]


def in_loop(scenario: Scenario) -> Callable[[ThreadPoolExecutor], None]:
    @functools.wraps(scenario)
    def test(threads: ThreadPoolExecutor) -> None:
        async def play() -> None:
            await scenario(Bench(threads))

        asyncio.run(play())

    del test.__wrapped__  # pytest would ask for the scenario's arguments
    return test


# -- coroutines ------------------------------------------------------------------------------------


@in_loop
async def test_a_job_knows_what_it_runs_for(bench: Bench) -> None:
    seen: list[Job] = []

    async def handler(job: Job) -> None:
        seen.append(job)
        await job.inbox.get()

    bench.begin(handler, {"tenant": 5})
    await bench.heard(Started(7))
    (job,) = seen
    assert (job.name, job.key, job.keyspace, job.id) == ("crm", "k1", "default", "id1")
    assert (job.epoch, job.attempt, job.payload) == (3, 2, {"tenant": 5})


def test_its_logger_says_which_job_it_is(caplog: pytest.LogCaptureFixture, threads: ThreadPoolExecutor) -> None:
    async def handler(job: Job) -> None:
        job.logger.warning("at %d %%", 5, extra={"own": 1})

    async def play() -> None:
        bench = Bench(threads)
        bench.begin(handler)
        await bench.heard(Started(7), Ended(7))

    asyncio.run(play())
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("test.jobs", "crm[k1]: at 5 %")
    assert record.__dict__["key"] == "k1" and record.__dict__["own"] == 1


@in_loop
async def test_a_coroutine_has_started_when_it_says_so(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        job.started()
        job.started()
        await asyncio.sleep(3600)

    bench.begin(handler)
    await bench.heard(Started(7))


@in_loop
async def test_a_coroutine_has_started_when_it_waits_for_its_inbox(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        async for _ in job.inbox:
            pass

    bench.begin(handler)
    await bench.heard(Started(7))


def test_a_coroutine_that_says_nothing_has_started_after_a_grace(
    monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(run_module, "START_GRACE", 0.2)

    async def handler(job: Job) -> None:
        await asyncio.sleep(3600)

    async def play() -> None:
        bench, began = Bench(threads), time.monotonic()
        bench.begin(handler)
        await bench.heard(Started(7))
        assert time.monotonic() - began >= 0.2

    asyncio.run(play())


@in_loop
async def test_a_coroutine_that_raises_before_it_has_started_has_failed(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        raise ConnectionError("no\n connection")

    bench.begin(handler)
    await bench.heard(Failed(7, "ConnectionError: no connection"))


def test_after_a_failed_start_the_grace_says_nothing(
    monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(run_module, "START_GRACE", 0.05)

    async def handler(job: Job) -> None:
        raise LookupError

    async def play() -> None:
        bench = Bench(threads)
        bench.begin(handler)
        await bench.heard(Failed(7, "LookupError"))
        await asyncio.sleep(0.1)
        await bench.heard(Failed(7, "LookupError"))

    asyncio.run(play())


@in_loop
async def test_a_coroutine_that_raises_later_has_ended_with_an_error(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        job.started()
        raise ConnectionError("lost")

    bench.begin(handler)
    await bench.heard(Started(7), Ended(7, "ConnectionError: lost"))


@in_loop
async def test_a_coroutine_that_returns_has_started_and_ended(bench: Bench) -> None:
    bench.begin(returns)
    await bench.heard(Started(7), Ended(7))


@in_loop
async def test_notifications_come_through_the_inbox_in_order_and_are_noted_when_they_are_taken(bench: Bench) -> None:
    got: list[Any] = []
    jobs: list[Job] = []
    more = asyncio.Event()

    async def handler(job: Job) -> None:
        jobs.append(job)
        got.append(await job.inbox.get())
        await more.wait()
        async for payload in job.inbox:
            got.append(payload)

    job = bench.begin(handler)
    for number in range(3):
        job.notify(f"n{number}", number)
    await bench.heard(Started(7), Noted(7, "n0"))
    assert got == [0]
    more.set()
    await until(lambda: got == [0, 1, 2])
    await bench.heard(Started(7), Noted(7, "n0"), Noted(7, "n1"), Noted(7, "n2"))
    job.notify("n3", 3)
    await until(lambda: got == [0, 1, 2, 3])
    assert len(jobs[0].inbox._waiting or ()) == 1, "nothing is kept of a wait that is over"


@in_loop
async def test_several_tasks_of_a_job_may_wait_for_its_inbox_and_be_cancelled(bench: Bench) -> None:
    got: list[tuple[int, Any]] = []
    tasks: list[asyncio.Task[None]] = []

    async def wait(number: int, job: Job) -> None:
        got.append((number, await job.inbox.get()))

    async def handler(job: Job) -> None:
        tasks.extend(asyncio.create_task(wait(number, job)) for number in range(3))
        await asyncio.wait(tasks)

    job = bench.begin(handler)
    await bench.heard(Started(7))
    tasks[0].cancel()
    for payload in ("a", "b"):
        job.notify(payload, payload)
    await until(lambda: len(got) == 2)
    assert sorted(payload for _, payload in got) == ["a", "b"] and {number for number, _ in got} == {1, 2}


@in_loop
async def test_a_stop_cancels_the_coroutine_and_waits_for_its_end(bench: Bench) -> None:
    may_end = asyncio.Event()

    async def handler(job: Job) -> None:
        try:
            await job.inbox.get()
        finally:
            await may_end.wait()

    job = bench.begin(handler)
    await bench.heard(Started(7))
    job.stop()
    await bench.heard(Started(7))
    may_end.set()
    await bench.heard(Started(7), Ended(7))


@in_loop
async def test_an_error_while_it_is_stopped_is_told(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        try:
            await job.inbox.get()
        finally:
            raise OSError("left open")

    job = bench.begin(handler)
    await bench.heard(Started(7))
    job.stop()
    await bench.heard(Started(7), Ended(7, "OSError: left open"))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_stop_during_the_start_cancels_it(steps: int, threads: ThreadPoolExecutor) -> None:
    async def handler(job: Job) -> None:
        await asyncio.sleep(3600)

    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(handler)
        for _ in range(steps):
            await asyncio.sleep(0)
        job.stop()
        await bench.heard(Ended(7))

    asyncio.run(play())


@in_loop
async def test_a_cancellation_that_nobody_asked_for_is_an_error(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        job.started()
        raise asyncio.CancelledError

    bench.begin(handler)
    await bench.heard(Started(7), Ended(7, "CancelledError"))


# -- classes ---------------------------------------------------------------------------------------


class Recorder(JobHandler):
    """Keeps what is called; its methods wait until they may go on."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.go_on = threading.Event()
        self.go_on.set()
        instances.append(self)

    def start(self, job: Job) -> Any:
        """See `JobHandler`."""
        self._called("start", job)

    def stop(self, job: Job) -> Any:
        """See `JobHandler`."""
        self._called("stop", job)

    def notify(self, job: Job, payload: Any) -> Any:
        """See `JobHandler`."""
        self._called(payload, job)

    def _called(self, what: Any, job: Job) -> None:
        self.calls.append(what)
        self.where = threading.current_thread()
        assert (job.payload or {}).get("hold", self.go_on).wait(10)
        error = (job.payload or {}).get(what)
        if error is not None:
            raise error


class AsyncRecorder(Recorder):
    """The same in the loop."""

    async def start(self, job: Job) -> None:
        """See `JobHandler`."""
        await asyncio.sleep(0)
        super().start(job)

    async def stop(self, job: Job) -> None:
        """See `JobHandler`."""
        await asyncio.sleep(0)
        super().stop(job)

    async def notify(self, job: Job, payload: Any) -> None:
        """See `JobHandler`."""
        await asyncio.sleep(0)
        super().notify(job, payload)


class HiddenRecorder(Recorder):
    """What is async does not look like it."""

    def start(self, job: Job) -> Any:
        """See `JobHandler`."""

        async def start() -> None:
            self._called("start", job)

        return start()


instances: list[Recorder] = []


@pytest.fixture(autouse=True)
def no_instances() -> None:
    instances.clear()


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "START_GRACE", 3600)


@pytest.fixture(params=[Recorder, AsyncRecorder])
def kind(request: pytest.FixtureRequest) -> type[Recorder]:
    found: type[Recorder] = request.param
    return found


def test_methods_are_called_one_after_the_other_on_one_instance(
    kind: type[Recorder], threads: ThreadPoolExecutor
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind)
        await bench.heard(Started(7))
        for number in range(3):
            job.notify(f"n{number}", number)
        await until(lambda: len(bench.answers) == 4)
        job.notify("n3", 3)
        await bench.heard(Started(7), *(Noted(7, f"n{number}") for number in range(4)))
        job.stop()
        await until(lambda: bench.answers[5:] == [Ended(7)])

    asyncio.run(play())
    (instance,) = instances
    assert instance.calls == ["start", 0, 1, 2, 3, "stop"]


@pytest.mark.parametrize(("kind", "in_thread"), [(Recorder, True), (AsyncRecorder, False)])
def test_what_is_not_async_runs_in_a_thread(kind: type[Recorder], in_thread: bool, threads: ThreadPoolExecutor) -> None:
    async def play() -> None:
        bench = Bench(threads)
        bench.begin(kind)
        await bench.heard(Started(7))

    asyncio.run(play())
    assert (instances[0].where is not threading.main_thread()) is in_thread


@in_loop
async def test_an_async_method_that_a_decorator_hides_is_awaited(bench: Bench) -> None:
    bench.begin(HiddenRecorder)
    await bench.heard(Started(7))
    assert instances[0].calls == ["start"]


ERRORS = [
    ConnectionError("down"),
    SystemExit("away"),
    KeyboardInterrupt(),
    StopIteration(),
    asyncio.CancelledError(),
    CancelledError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_method_raises_is_an_error_of_the_job(
    error: BaseException, kind: type[Recorder], threads: ThreadPoolExecutor
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        bench.begin(kind, {"start": error})
        await until(lambda: bench.answers)
        ((failed),) = bench.answers
        assert isinstance(failed, Failed) and failed.error
        stopped = Bench(threads)
        stopped.begin(kind, {"stop": error}).stop()
        await until(lambda: len(stopped.answers) == 2)
        started, ended = stopped.answers
        assert started == Started(7) and isinstance(ended, Ended) and ended.error

    asyncio.run(play())


def test_a_class_that_cannot_be_made_has_failed(threads: ThreadPoolExecutor) -> None:
    class Broken(Starts):
        def __init__(self) -> None:
            raise LookupError("no config")

    async def play() -> None:
        bench = Bench(threads)
        bench.begin(Broken)
        await bench.heard(Failed(7, "LookupError: no config"))

    asyncio.run(play())


@in_loop
async def test_a_stop_waits_for_the_start_under_way(bench: Bench) -> None:
    hold = threading.Event()
    job = bench.begin(Recorder, {"hold": hold})
    await until(lambda: instances and instances[0].calls)
    job.stop()
    await bench.heard()
    assert instances[0].calls == ["start"]
    hold.set()
    await bench.heard(Started(7), Ended(7))
    assert instances[0].calls == ["start", "stop"]


@in_loop
async def test_after_a_failed_start_nothing_else_is_called(bench: Bench) -> None:
    job = bench.begin(Recorder, {"start": LookupError("no")})
    job.notify("n1", 1)
    job.stop()
    await bench.heard(Failed(7, "LookupError: no"))
    job.stop()
    await bench.heard(Failed(7, "LookupError: no"))
    assert instances[0].calls == ["start"]


@in_loop
async def test_a_stop_goes_before_notifications_that_wait(bench: Bench) -> None:
    job = bench.begin(Recorder)
    await bench.heard(Started(7))
    instances[0].go_on.clear()
    for number in range(3):
        job.notify(f"n{number}", number)
    await until(lambda: instances[0].calls[1:] == [0])
    job.stop()
    instances[0].go_on.set()
    await bench.heard(Started(7), Noted(7, "n0"), Ended(7))
    assert instances[0].calls == ["start", 0, "stop"]


def test_a_notification_that_the_job_cannot_take_is_logged_and_it_lives_on(
    caplog: pytest.LogCaptureFixture, kind: type[Recorder], threads: ThreadPoolExecutor
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind, {1: ValueError("cannot take it")})
        for number in range(3):
            job.notify(f"n{number}", number)
        await bench.heard(Started(7), Noted(7, "n0"), Noted(7, "n1"), Noted(7, "n2"))

    asyncio.run(play())
    assert "ValueError: cannot take it" in caplog.text and "Traceback" in caplog.text


def test_a_class_without_notify_drops_what_comes_and_says_so(
    caplog: pytest.LogCaptureFixture, threads: ThreadPoolExecutor
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(Starts)
        job.notify("n0", 0)
        await bench.heard(Started(7), Noted(7, "n0"))
        job.stop()
        await bench.heard(Started(7), Noted(7, "n0"), Ended(7))

    asyncio.run(play())
    assert "dropped" in caplog.text


@in_loop
async def test_jobs_run_beside_each_other(bench: Bench) -> None:
    jobs = [bench.begin(Recorder) for _ in range(2)]
    await bench.heard(Started(7), Started(7))
    instances[0].go_on.clear()
    for job in jobs:
        job.notify("n", "n")
    await until(lambda: bench.answers[2:] == [Noted(7, "n")])
    assert instances[0].calls == instances[1].calls == ["start", "n"]
    instances[0].go_on.set()
