"""The life of a job in an event loop: what the worker is told of a start, of notifications, of a stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from celery_sticky import errors
from celery_sticky.errors import BlockingCall, InvalidPayload
from celery_sticky.jobs.handler import Job, JobHandler, JobSpec, ThreadJob
from celery_sticky.jobs.host import function_run as run_module
from celery_sticky.jobs.host import handler_run
from celery_sticky.jobs.host.run import begin
from celery_sticky.jobs.host.surroundings import Answer, HostedRun, Surroundings
from celery_sticky.jobs.host.tasks import RunTasks
from celery_sticky.jobs.host.thread_run import NO_COROUTINE
from celery_sticky.jobs.host.threads import HandlerThreads
from celery_sticky.jobs.inbox import Notification
from celery_sticky.jobs.marks import Marks
from celery_sticky.jobs.payload import MAX_SAVED
from celery_sticky.jobs.saves import Saves
from celery_sticky.jobs.wire import (
    Call,
    Calls,
    Ended,
    Failed,
    Noted,
    Save,
    Saved,
    SaveRefused,
    Start,
    Started,
    Taken,
    Unhandled,
    Waits,
)

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

    def __init__(self, threads: HandlerThreads) -> None:
        self.answers: list[Answer] = []
        self.taken: list[Taken] = []
        self.on_taken: Callable[[], object] = lambda: None
        self.said: list[Save] = []
        self.over = False
        self.saves = Saves(self.said.append, lambda _: not self.over, asyncio.get_running_loop())
        self.called = 0
        """How often it was told of the call of a start; `answers` has only those that had to wait."""
        tasks = RunTasks(Marks.unread(0))
        asyncio.get_running_loop().set_task_factory(tasks.create)
        self._here = Surroundings(self._hear, threads, tasks, LOGGER, self.saves)

    def _hear(self, answer: Answer) -> None:
        if isinstance(answer, Taken):
            self.taken.append(answer)
            self.on_taken()
            return
        self.called += answer == Calls(7, Call.START)
        if answer != Calls(7, Call.START) or self.answers[-1:] == [Waits(7, Call.START)]:
            self.answers.append(answer)

    def begin(self, handler: Any, payload: Any = None, saved: Any = None, ref: int = 7) -> HostedRun:
        start = Start(ref, "crm", "k1", "default", "id1", 3, 2, payload, 1, saved=saved)
        return begin(JobSpec("crm", "default", handler), start, self._here)

    async def heard(self, *answers: Answer) -> None:
        """Wait for these answers, and see that there are no others."""
        await until(lambda: len(self.answers) >= len(answers), f"{self.answers} become {answers}")
        await asyncio.sleep(0.01)
        assert self.answers == list(answers)


def note(id: str, payload: Any, delivery: int = 1) -> Notification:  # noqa: A002
    return Notification(id, payload, delivery)


async def until(condition: Callable[[], Any], what: str = "") -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    threads = HandlerThreads(4, Marks.unread(3 * 4))
    yield threads
    threads.shutdown()


Scenario = Callable[[Bench], Awaitable[None]]


def in_loop(scenario: Scenario) -> Callable[[HandlerThreads], None]:
    @functools.wraps(scenario)
    def test(threads: HandlerThreads) -> None:
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


def test_its_logger_says_which_job_it_is(caplog: pytest.LogCaptureFixture, threads: HandlerThreads) -> None:
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
    monkeypatch: pytest.MonkeyPatch, threads: HandlerThreads
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


def test_after_a_failed_start_the_grace_says_nothing(monkeypatch: pytest.MonkeyPatch, threads: HandlerThreads) -> None:
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
async def test_a_notification_is_acknowledged_when_the_coroutine_asks_for_the_next_one(bench: Bench) -> None:
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
        job.notify(note(f"n{number}", number, number + 1))
    await until(lambda: got == [0])
    await bench.heard(Started(7))
    more.set()
    await until(lambda: got == [0, 1, 2])
    await bench.heard(Started(7), Noted(7, "n0"), Noted(7, "n1"), Noted(7, "n2"))
    job.notify(note("n3", 3))
    await until(lambda: got == [0, 1, 2, 3])
    assert len(jobs[0].inbox._waiting or ()) == 1, "nothing is kept of a wait that is over"
    assert bench.taken == [*(Taken(7, f"n{number}", number + 1) for number in range(3)), Taken(7, "n3", 1)]


@in_loop
async def test_the_worker_knows_of_a_notification_before_the_coroutine_handles_it(bench: Bench) -> None:
    """Guards: a host that died in the moment in which it took a notification had not said so."""
    told: list[bool] = []

    async def handler(job: Job) -> None:
        loop = asyncio.get_running_loop()
        bench.on_taken = lambda: loop.call_soon(told.append, True)  # as the host writes its answers
        async for _ in job.inbox:
            assert told == [True]
            job.started()
            raise LookupError("handled")

    bench.begin(handler).notify(note("n", 1))
    await bench.heard(Started(7), Unhandled(7, "n", 1, "LookupError: handled"), Ended(7, "LookupError: handled"))


@in_loop
async def test_a_coroutine_that_raises_has_not_handled_what_it_has_in_hand(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        async for payload in job.inbox:
            if payload == "bad":
                raise ValueError(payload)

    job = bench.begin(handler)
    for payload in ("good", "bad", "later"):
        job.notify(note(payload, payload, 2))
    error = "ValueError: bad"
    await bench.heard(Started(7), Noted(7, "good"), Unhandled(7, "bad", 2, error), Ended(7, error))


@pytest.mark.parametrize("ends", ["returns", "is stopped", "raises as it is stopped"])
def test_a_coroutine_that_returns_or_is_stopped_has_failed_no_delivery(ends: str, threads: HandlerThreads) -> None:
    async def handler(job: Job) -> None:
        async for _ in job.inbox:
            if ends == "returns":
                return
            try:
                await asyncio.sleep(3600)
            finally:
                assert ends == "is stopped", "no"

    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(handler)
        job.notify(note("n", 1))
        await until(lambda: bench.taken)
        await asyncio.sleep(0.01)
        job.stop()
        await until(lambda: isinstance(bench.answers[-1], Ended))
        assert bench.answers[0] == Started(7) and len(bench.answers) == 2

    asyncio.run(play())


@in_loop
async def test_a_wait_for_the_inbox_that_ends_in_the_same_moment_loses_no_notification(bench: Bench) -> None:
    """Guards: a notification was taken and forgotten, because the wait for it was cancelled just then."""
    got: list[Any] = []
    cancelled: list[bool] = []

    async def handler(job: Job) -> None:
        for steps in range(10):
            wait = asyncio.create_task(job.inbox.get())
            await asyncio.sleep(0.001)
            run.notify(note(f"n{steps}", steps))
            for _ in range(steps):
                await asyncio.sleep(0)
            wait.cancel()
            await asyncio.wait([wait])
            lost = wait.cancelled()
            cancelled.append(lost)
            got.append(await job.inbox.get() if lost else wait.result())
        async for payload in job.inbox:
            got.append(payload)

    run = bench.begin(handler)
    await until(lambda: len(got) == 10)
    assert got == list(range(10)) and cancelled == [True] * 2 + [False] * 8
    await until(lambda: len(bench.answers) == 11)
    assert set(bench.answers[1:]) == {Noted(7, f"n{number}") for number in range(10)}


@in_loop
async def test_a_task_acknowledges_what_it_took_itself_and_what_was_taken_by_tasks_that_have_ended(
    bench: Bench,
) -> None:
    go_on = {payload: asyncio.Event() for payload in "abcdefg"}

    async def consume(job: Job) -> None:
        async for payload in job.inbox:
            await go_on[payload].wait()

    async def handler(job: Job) -> None:
        one, two = (asyncio.create_task(consume(job)) for _ in range(2))
        await go_on["d"].wait()
        one.cancel()
        two.cancel()
        await asyncio.wait([one, two])
        await asyncio.wait_for(job.inbox.get(), 10)
        await asyncio.create_task(job.inbox.get())
        await job.inbox.get()

    job = bench.begin(handler)
    for payload in "abcdef":
        job.notify(note(payload, payload))
    await until(lambda: len(bench.taken) == 2)
    go_on["b"].set()
    await until(lambda: len(bench.taken) == 3)
    assert bench.answers == [Started(7), Noted(7, "b")], "the other task still handles its notification"
    go_on["d"].set()
    await until(lambda: isinstance(bench.answers[-1], Ended))
    assert bench.answers[:2] == [Started(7), Noted(7, "b")] and bench.answers[-1] == Ended(7)
    assert {answer.note for answer in bench.answers if isinstance(answer, Noted)} == set("abcde")


@in_loop
async def test_notes_are_acknowledged_by_themselves_alone_and_in_any_order(bench: Bench) -> None:
    got: list[Notification] = []

    async def handler(job: Job) -> None:
        async for note in job.inbox.notes():
            got.append(note)
            if note.payload == "end":
                raise LookupError("no")

    job = bench.begin(handler)
    for delivery, payload in enumerate(("a", "b", "c"), 1):
        job.notify(note(payload, payload, delivery))
    await until(lambda: len(got) == 3)
    await bench.heard(Started(7))
    assert [(found.payload, found.delivery) for found in got] == [("a", 1), ("b", 2), ("c", 3)]
    got[1].ack()
    got[1].ack()
    got[0].ack()
    await bench.heard(Started(7), Noted(7, "b"), Noted(7, "a"))
    job.notify(note("end", "end"))
    await until(lambda: isinstance(bench.answers[-1], Ended))
    unhandled = [answer for answer in bench.answers if isinstance(answer, Unhandled)]
    assert [(answer.note, answer.delivery) for answer in unhandled] == [("c", 3), ("end", 1)]


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
        job.notify(note(payload, payload))
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
def test_a_stop_during_the_start_cancels_it(steps: int, threads: HandlerThreads) -> None:
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


@pytest.mark.parametrize("ends", ["returns", "raises", "is stopped"])
def test_the_tasks_of_a_coroutine_end_with_it_before_its_end_is_told(ends: str, threads: HandlerThreads) -> None:
    ended: list[str] = []
    made: list[asyncio.Task[None]] = []

    async def child(name: str, *, more: bool = False) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if more:
                made.append(asyncio.create_task(child("made in the end")))
            await asyncio.sleep(0.02)
            ended.append(name)

    async def handler(job: Job) -> None:
        children = [asyncio.create_task(child("one")), asyncio.create_task(child("two", more=True))]
        job.started()
        if ends == "is stopped":
            await asyncio.wait(children)
        await asyncio.sleep(0)
        if ends == "raises":
            raise LookupError("no")

    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(handler)
        await asyncio.sleep(0.01)
        if ends == "is stopped":
            job.stop()
        await until(lambda: isinstance(bench.answers[-1], Ended))
        assert sorted(ended) == ["made in the end", "one", "two"] and made[0].cancelled()
        assert bench.answers == [Started(7), Ended(7, "LookupError: no" if ends == "raises" else "")]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())


@in_loop
async def test_a_stop_while_the_tasks_of_a_coroutine_end_waits_for_them(bench: Bench) -> None:
    ended: list[str] = []
    made: list[asyncio.Task[None]] = []

    async def child() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.1)
            ended.append("child")

    async def handler(job: Job) -> None:
        made.append(asyncio.create_task(child()))
        await asyncio.sleep(0.01)

    job = bench.begin(handler)
    await asyncio.sleep(0.05)
    job.stop()
    await until(lambda: isinstance(bench.answers[-1:][0] if bench.answers else None, Ended))
    assert ended == ["child"]


@pytest.mark.parametrize("where", ["its task", "a callback", "a thread"])
@pytest.mark.parametrize("started", [True, False])
def test_a_coroutine_may_say_that_it_has_failed_or_is_done(where: str, started: bool, threads: HandlerThreads) -> None:
    async def handler(job: Job) -> None:
        end = functools.partial(job.fail, "no luck") if job.payload == "fail" else job.done
        if started:
            job.started()
        if where == "its task":
            end()
        elif where == "a callback":
            asyncio.get_running_loop().call_soon(end)
        else:
            await asyncio.to_thread(end)
        await asyncio.sleep(3600)

    async def play() -> None:
        bench = Bench(threads)
        bench.begin(handler, "fail")
        failed = [Started(7), Ended(7, "no luck")] if started else [Failed(7, "no luck")]
        await bench.heard(*failed)
        bench.answers.clear()
        bench.begin(handler, "done")
        await bench.heard(Started(7), Ended(7))

    asyncio.run(play())


@in_loop
async def test_what_a_coroutine_has_in_hand_when_it_says_that_it_has_failed_is_not_handled(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        async for _ in job.inbox:
            job.fail("no luck")

    bench.begin(handler).notify(note("n", 1))
    await bench.heard(Started(7), Unhandled(7, "n", 1, "no luck"), Ended(7, "no luck"))


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
        if isinstance(error, list):
            error = error.pop() if error else None
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


def test_methods_are_called_one_after_the_other_on_one_instance(kind: type[Recorder], threads: HandlerThreads) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind)
        await bench.heard(Started(7))
        for number in range(3):
            job.notify(note(f"n{number}", number))
        await until(lambda: len(bench.answers) == 4)
        job.notify(note("n3", 3))
        await bench.heard(Started(7), *(Noted(7, f"n{number}") for number in range(4)))
        job.stop()
        await until(lambda: bench.answers[5:] == [Ended(7)])

    asyncio.run(play())
    (instance,) = instances
    assert instance.calls == ["start", 0, 1, 2, 3, "stop"]


@pytest.mark.parametrize(("kind", "in_thread"), [(Recorder, True), (AsyncRecorder, False)])
def test_what_is_not_async_runs_in_a_thread(kind: type[Recorder], in_thread: bool, threads: HandlerThreads) -> None:
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
    error: BaseException, kind: type[Recorder], threads: HandlerThreads
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        bench.begin(kind, {"start": error})
        await until(lambda: bench.answers)
        ((failed),) = bench.answers
        assert isinstance(failed, Failed) and failed.error
        stopped = Bench(threads)
        job = stopped.begin(kind, {"stop": error})
        await stopped.heard(Started(7))
        job.stop()
        await until(lambda: len(stopped.answers) == 2)
        started, ended = stopped.answers
        assert started == Started(7) and isinstance(ended, Ended) and ended.error

    asyncio.run(play())


def test_a_class_that_cannot_be_made_has_failed(threads: HandlerThreads) -> None:
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
    job.stop()
    await bench.heard(Waits(7, Call.STOP))
    assert instances[0].calls == ["start"]
    hold.set()
    await bench.heard(Waits(7, Call.STOP), Started(7), Calls(7, Call.STOP), Ended(7))
    assert instances[0].calls == ["start", "stop"]


@in_loop
async def test_a_stop_before_the_start_was_called_ends_the_run_at_once_and_nothing_is_called(bench: Bench) -> None:
    for kind in (Recorder, AsyncRecorder):
        bench.answers.clear()
        bench.begin(kind).stop()
        await bench.heard(Ended(7))
    assert instances == []


async def async_starts(job: Job) -> None:
    job.started()


@pytest.mark.parametrize("handler", [async_starts, Recorder, AsyncRecorder])
def test_the_call_of_a_start_is_told_before_it_is_made(handler: Any, threads: HandlerThreads) -> None:
    async def play() -> None:
        bench = Bench(threads)
        bench.begin(handler)
        await until(lambda: bench.answers)
        assert bench.called == 1

    asyncio.run(play())


# -- threads ---------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[HandlerThreads]:
    threads = HandlerThreads(1, Marks.unread(3))
    yield threads
    threads.shutdown()


def test_a_start_that_waits_for_a_thread_is_told_and_so_is_its_call(one_thread: HandlerThreads) -> None:
    async def play() -> None:
        hold, (first, second) = threading.Event(), (Bench(one_thread), Bench(one_thread))
        first.begin(Recorder, {"hold": hold})
        await until(lambda: instances and instances[0].calls)
        second.begin(Recorder)
        await second.heard(Waits(7, Call.START))
        assert len(instances) == 1, "not even made"
        hold.set()
        await second.heard(Waits(7, Call.START), Calls(7, Call.START), Started(7))

    asyncio.run(play())


def test_a_start_that_waits_for_a_thread_is_withdrawn_by_a_stop(one_thread: HandlerThreads) -> None:
    async def play() -> None:
        hold, benches = threading.Event(), [Bench(one_thread) for _ in range(3)]
        _, second, _ = [bench.begin(Recorder, {"hold": hold}) for bench in benches]
        await until(lambda: all(bench.answers for bench in benches[1:]) and instances)
        second.stop()
        await benches[1].heard(Waits(7, Call.START), Ended(7))
        hold.set()
        await benches[2].heard(Waits(7, Call.START), Calls(7, Call.START), Started(7))
        assert len(instances) == 2

    asyncio.run(play())


def test_a_start_that_is_stopped_in_the_moment_in_which_a_thread_is_free_is_not_called(
    one_thread: HandlerThreads,
) -> None:
    async def play() -> None:
        first, second, third = (Bench(one_thread) for _ in range(3))
        hold = threading.Event()
        first.begin(Recorder, {"hold": hold})
        await until(lambda: instances and instances[0].calls)
        job = second.begin(Recorder)
        await second.heard(Waits(7, Call.START))
        lane = one_thread.lane("start")
        lane.leave()  # as the first one does at its end
        job.stop()
        await second.heard(Waits(7, Call.START), Ended(7))
        third.begin(Recorder)
        await third.heard(Started(7))
        hold.set()

    asyncio.run(play())


def test_a_stop_waits_neither_behind_starts_that_hang_nor_behind_notifications(one_thread: HandlerThreads) -> None:
    async def play() -> None:
        hold, (stops, notified, starts) = threading.Event(), (Bench(one_thread) for _ in range(3))
        stop, notify = stops.begin(Recorder), notified.begin(Recorder)
        await stops.heard(Started(7))
        await until(lambda: notified.answers[-1:] == [Started(7)])
        instances[1].go_on.clear()
        notify.notify(note("n", "n"))
        starts.begin(Recorder, {"hold": hold})
        await until(lambda: len(instances) == 3 and instances[2].calls and len(instances[1].calls) == 2)
        stop.stop()
        await stops.heard(Started(7), Ended(7))
        hold.set()
        instances[1].go_on.set()

    asyncio.run(play())


def test_stops_that_wait_for_a_thread_are_told_and_go_in_order(one_thread: HandlerThreads) -> None:
    async def play() -> None:
        benches = [Bench(one_thread) for _ in range(3)]
        jobs = [bench.begin(Recorder) for bench in benches]
        await until(lambda: all(bench.answers[-1:] == [Started(7)] for bench in benches))
        for bench in benches:
            bench.answers.clear()
        instances[0].go_on.clear()
        for job in jobs:
            job.stop()
        for bench in benches[1:]:
            await bench.heard(Waits(7, Call.STOP))
        instances[0].go_on.set()
        await benches[0].heard(Ended(7))
        for bench in benches[1:]:
            await bench.heard(Waits(7, Call.STOP), Calls(7, Call.STOP), Ended(7))

    asyncio.run(play())


def test_a_notification_that_waits_for_a_thread_is_left_by_a_stop(one_thread: HandlerThreads) -> None:
    async def play() -> None:
        first, second = (Bench(one_thread) for _ in range(2))
        busy, job = first.begin(Recorder), second.begin(Recorder)
        await first.heard(Started(7))
        await until(lambda: second.answers[-1:] == [Started(7)])
        second.answers.clear()
        instances[0].go_on.clear()
        busy.notify(note("n", "n"))
        await until(lambda: len(instances[0].calls) == 2)
        job.notify(note("n", "n"))
        await second.heard()
        job.stop()
        await second.heard(Ended(7))
        assert instances[1].calls == ["start", "stop"]
        instances[0].go_on.set()

    asyncio.run(play())


# -- a class that ends by itself -------------------------------------------------------------------


class Ends(Recorder):
    """Ends when it is notified, from where the payload says."""

    def notify(self, job: Job, payload: Any) -> None:
        """See `JobHandler`."""
        end = functools.partial(job.fail, "no luck") if "fail" in payload else job.done
        if "thread" in payload:
            thread = threading.Thread(target=end)
            thread.start()
            thread.join()
        else:
            end()
        super().notify(job, payload)


class AsyncEnds(Ends):
    """The same in the loop."""

    async def notify(self, job: Job, payload: Any) -> None:  # type: ignore[override]
        """See `JobHandler`."""
        super().notify(job, payload)


@pytest.mark.parametrize("kind", [Ends, AsyncEnds])
@pytest.mark.parametrize("payload", ["fail", "done", "fail in a thread", "done in a thread"])
def test_a_class_may_say_that_it_has_failed_or_is_done_and_is_stopped_first(
    kind: type[Recorder], payload: str, threads: HandlerThreads
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind)
        for number, told in enumerate((payload, "later")):
            job.notify(note(f"n{number}", told))
        await until(lambda: isinstance(bench.answers[-1:][0] if bench.answers else None, Ended))
        assert bench.answers == [Started(7), Noted(7, "n0"), Ended(7, "no luck" if "fail" in payload else "")]

    asyncio.run(play())
    assert instances[0].calls == ["start", payload, "stop"]


@in_loop
async def test_a_class_that_fails_while_it_starts_is_stopped_when_it_has_started(bench: Bench) -> None:
    class Fails(Recorder):
        def start(self, job: Job) -> None:
            job.fail("no luck")
            super().start(job)

    bench.begin(Fails)
    await bench.heard(Started(7), Ended(7, "no luck"))
    assert instances[0].calls == ["start", "stop"]


@in_loop
async def test_a_class_that_fails_while_a_notification_waits_to_come_again_ends_at_once(bench: Bench) -> None:
    jobs: list[Job] = []

    class Keeps(Recorder):
        def start(self, job: Job) -> None:
            jobs.append(job)

    run = bench.begin(Keeps, {1: ValueError("no")})
    run.notify(note("n1", 1))
    unhandled = Unhandled(7, "n1", 1, "ValueError: no")
    await bench.heard(Started(7), unhandled)
    jobs[0].fail("no luck")
    jobs[0].done()
    run.stop()
    await bench.heard(Started(7), unhandled, Ended(7, "no luck"))
    assert instances[0].calls == [1, "stop"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_tasks_of_a_class_live_until_it_was_stopped(fails: bool, threads: HandlerThreads) -> None:
    calls: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            calls.append("child ends")

    class Parent(JobHandler):
        async def start(self, job: Job) -> None:
            self.child = asyncio.create_task(child())
            await asyncio.sleep(0)
            if fails:
                raise LookupError("no")

        async def stop(self, job: Job) -> None:
            calls.append("stop" if not self.child.done() else "too late")

    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(Parent)
        if not fails:
            await bench.heard(Started(7))
            job.stop()
        await until(lambda: bench.answers[-1:] in ([Ended(7)], [Failed(7, "LookupError: no")]))
        assert calls == (["child ends"] if fails else ["stop", "child ends"])

    asyncio.run(play())


# -- what else a class does ------------------------------------------------------------------------


@in_loop
async def test_after_a_failed_start_nothing_else_is_called(bench: Bench) -> None:
    hold = threading.Event()
    job = bench.begin(Recorder, {"hold": hold, "start": LookupError("no")})
    await until(lambda: instances and instances[0].calls)
    job.notify(note("n1", 1))
    job.stop()
    hold.set()
    await bench.heard(Waits(7, Call.STOP), Failed(7, "LookupError: no"))
    job.stop()
    await bench.heard(Waits(7, Call.STOP), Failed(7, "LookupError: no"))
    assert instances[0].calls == ["start"]


@in_loop
async def test_a_stop_goes_before_notifications_that_wait(bench: Bench) -> None:
    job = bench.begin(Recorder)
    await bench.heard(Started(7))
    instances[0].go_on.clear()
    for number in range(3):
        job.notify(note(f"n{number}", number))
    await until(lambda: instances[0].calls[1:] == [0])
    job.stop()
    instances[0].go_on.set()
    await bench.heard(Started(7), Noted(7, "n0"), Ended(7))
    assert instances[0].calls == ["start", 0, "stop"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications that were not handled are delivered again at once."""
    monkeypatch.setattr(handler_run, "RETRY_FIRST", 0.001)


@pytest.mark.usefixtures("soon")
def test_a_notification_that_is_not_handled_is_delivered_again_and_later_ones_wait(
    caplog: pytest.LogCaptureFixture, kind: type[Recorder], threads: HandlerThreads
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind, {1: [ValueError("not yet")] * 3})
        for number in range(3):
            job.notify(note(f"n{number}", number))
        failed = [Unhandled(7, "n1", delivery, "ValueError: not yet") for delivery in (1, 2, 3)]
        await bench.heard(Started(7), Noted(7, "n0"), *failed, Noted(7, "n1"), Noted(7, "n2"))
        taken = [Taken(7, "n1", delivery) for delivery in (1, 2, 3, 4)]
        assert bench.taken == [Taken(7, "n0", 1), *taken, Taken(7, "n2", 1)]

    asyncio.run(play())
    assert [call for call in instances[0].calls if call not in ("start", 1)] == [0, 2]
    assert "ValueError: not yet" in caplog.text and "Traceback" in caplog.text


@pytest.mark.usefixtures("soon")
def test_after_the_last_delivery_the_job_goes_on_with_the_next_notification(
    kind: type[Recorder], threads: HandlerThreads
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(kind, {1: ValueError("never")})
        job.notify(note("n1", 1, 4))
        job.notify(note("n2", 2))
        failed = [Unhandled(7, "n1", delivery, "ValueError: never") for delivery in (4, 5)]
        await bench.heard(Started(7), *failed, Noted(7, "n2"))

    asyncio.run(play())


@in_loop
async def test_a_stop_does_not_wait_for_the_next_delivery(bench: Bench) -> None:
    job = bench.begin(Recorder, {1: ValueError("no")})
    job.notify(note("n1", 1))
    unhandled = Unhandled(7, "n1", 1, "ValueError: no")
    await bench.heard(Started(7), unhandled)
    job.notify(note("n2", 2))
    await bench.heard(Started(7), unhandled)
    job.stop()
    await bench.heard(Started(7), unhandled, Ended(7))
    assert instances[0].calls == ["start", 1, "stop"]


@in_loop
async def test_an_error_of_a_notification_while_the_job_is_stopped_counts(bench: Bench) -> None:
    job = bench.begin(Recorder, {1: ValueError("no")})
    await bench.heard(Started(7))
    instances[0].go_on.clear()
    job.notify(note("n1", 1))
    await until(lambda: instances[0].calls[1:] == [1])
    job.stop()
    instances[0].go_on.set()
    await bench.heard(Started(7), Unhandled(7, "n1", 1, "ValueError: no"), Ended(7))


def test_a_class_without_notify_drops_what_comes_and_says_so(
    caplog: pytest.LogCaptureFixture, threads: HandlerThreads
) -> None:
    async def play() -> None:
        bench = Bench(threads)
        job = bench.begin(Starts)
        job.notify(note("n0", 0))
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
        job.notify(note("n", "n"))
    await until(lambda: bench.answers[2:] == [Noted(7, "n")])
    assert instances[0].calls == instances[1].calls == ["start", "n"]
    instances[0].go_on.set()


# -- checkpoints -----------------------------------------------------------------------------------


@in_loop
async def test_a_checkpoint_is_saved_when_the_worker_says_so(bench: Bench) -> None:
    lines: list[str] = []

    async def handler(job: Job) -> None:
        lines.append(f"from {job.saved}")
        await job.save({"page": 5})
        lines.append("saved")

    bench.begin(handler, saved={"page": 4})
    await until(lambda: bench.said)
    await asyncio.sleep(0.01)
    assert (bench.said, lines) == ([Save(7, 1, '{"page":5}')], ["from {'page': 4}"])
    bench.saves.answered(Saved(7, 1))
    await bench.heard(Started(7), Ended(7))
    assert lines == ["from {'page': 4}", "saved"]


@in_loop
async def test_a_checkpoint_that_is_refused_raises(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        job.started()
        await job.save(1)

    bench.begin(handler)
    await until(lambda: bench.said)
    bench.saves.answered(SaveRefused(7, 1))
    await bench.heard(Started(7), Ended(7, f"SaveRefused: {errors.SaveRefused()}"))


@in_loop
async def test_a_checkpoint_whose_caller_was_cancelled_is_answered_all_the_same(bench: Bench) -> None:
    async def handler(job: Job) -> None:
        await job.save(1)

    bench.begin(handler)
    await until(lambda: bench.said)
    run = bench.begin(handler, ref=8)
    await until(lambda: len(bench.said) == 2)
    run.stop()
    await until(lambda: Ended(8) in bench.answers)
    bench.saves.answered(SaveRefused(8, 2))
    bench.saves.answered(Saved(7, 1))
    await until(lambda: Ended(7) in bench.answers)


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ({1, 2}, "its checkpoint cannot be written as JSON"),
        ("x" * (MAX_SAVED - 1), "its checkpoint is 65537 bytes .* limit is 65536"),
    ],
)
def test_a_checkpoint_is_json_of_at_most_64_kib(checkpoint: Any, said: str, threads: HandlerThreads) -> None:
    async def handler(job: Job) -> None:
        with pytest.raises(InvalidPayload, match=f"^job 'crm': {said}"):
            await job.save(checkpoint)
        await asyncio.to_thread(job.save_sync, "x" * (MAX_SAVED - 2))

    async def play() -> None:
        bench = Bench(threads)
        bench.begin(handler)
        await until(lambda: bench.said)
        bench.saves.answered(Saved(7, 1))
        await bench.heard(Started(7), Ended(7))

    asyncio.run(play())


@in_loop
async def test_a_method_in_a_thread_waits_for_its_checkpoint(bench: Bench) -> None:
    lines: list[str] = []

    class Saving(JobHandler):
        """Saves where it may and where it may not."""

        def start(self, job: Job) -> None:
            """See `JobHandler`."""
            with pytest.raises(BlockingCall, match=r"call `job\.save_sync` in a thread"):
                job.save(1)
            job.save_sync([1])
            lines.append("saved")

        async def stop(self, job: Job) -> None:
            """See `JobHandler`."""
            with pytest.raises(BlockingCall, match=r"use `await job\.save"):
                job.save_sync(1)

    run = bench.begin(Saving)
    await until(lambda: bench.said)
    await asyncio.sleep(0.01)
    assert (bench.said, lines) == ([Save(7, 1, "[1]")], [])
    bench.saves.answered(Saved(7, 1))
    await until(lambda: bench.answers == [Started(7)])
    run.stop()
    await bench.heard(Started(7), Ended(7))


@in_loop
async def test_a_thread_that_a_run_left_behind_saves_nothing(bench: Bench) -> None:
    jobs: list[Job] = []

    async def handler(job: Job) -> None:
        jobs.append(job)

    bench.begin(handler)
    await bench.heard(Started(7), Ended(7))
    bench.over = True
    with pytest.raises(errors.SaveRefused):
        await asyncio.to_thread(jobs[0].save_sync, 1)
    assert bench.said == []


# -- plain functions -------------------------------------------------------------------------------


@in_loop
async def test_a_plain_function_runs_in_a_thread_of_its_own_until_it_is_to_stop(bench: Bench) -> None:
    seen: list[ThreadJob] = []
    threads: list[threading.Thread] = []

    def handler(job: ThreadJob) -> None:
        job.started()
        seen.append(job)
        threads.append(threading.current_thread())
        while not job.stopping.wait(0.01):
            pass

    job, other = bench.begin(handler, {"tenant": 5}), bench.begin(handler)
    await until(lambda: len(seen) == 2)
    assert (seen[0].name, seen[0].key) == ("crm", "k1")
    assert {"tenant": 5} in [job.payload for job in seen]
    assert len(set(threads)) == 2 and threading.current_thread() not in threads
    await bench.heard(Started(7), Started(7))
    job.stop()
    await bench.heard(Started(7), Started(7), Ended(7))
    other.stop()
    await bench.heard(Started(7), Started(7), Ended(7), Ended(7))
    await until(lambda: not any(thread.is_alive() for thread in threads))


def test_the_end_of_a_plain_function_is_told(threads: HandlerThreads) -> None:
    def handler(job: ThreadJob) -> Any:
        match job.payload:
            case "returns":
                return None
            case "raises":
                job.started()
                raise LookupError("no")
            case "exits":
                raise SystemExit(3)
            case "returns a coroutine":
                return returns(job)  # type: ignore[arg-type]
            case "fails":
                job.started()
                job.fail("no luck")
            case "is done":
                job.done()
        return job.stopping.wait(10)

    ends: dict[str, list[Answer]] = {
        "returns": [Started(7), Ended(7)],
        "raises": [Started(7), Ended(7, "LookupError: no")],
        "exits": [Failed(7, "SystemExit: 3")],
        "returns a coroutine": [Failed(7, NO_COROUTINE)],
        "fails": [Started(7), Ended(7, "no luck")],
        "is done": [Started(7), Ended(7)],
    }

    async def play(payload: str) -> None:
        bench = Bench(threads)
        bench.begin(handler, payload)
        await bench.heard(*ends[payload])

    for payload in ends:
        asyncio.run(play(payload))


@in_loop
async def test_a_plain_function_that_is_stopped_before_its_call_is_not_called(bench: Bench) -> None:
    called: list[ThreadJob] = []
    bench.begin(lambda job: called.append(job)).stop()
    await bench.heard(Ended(7))
    assert called == []


@in_loop
async def test_a_thread_that_cannot_be_started_is_a_failed_start(bench: Bench) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    def handler(job: ThreadJob) -> None:
        """Is not called."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        bench.begin(handler)
        await bench.heard(Failed(7, "RuntimeError: can't start new thread"))


@in_loop
async def test_a_plain_function_acknowledges_a_notification_when_it_asks_for_the_next_one(bench: Bench) -> None:
    got: list[Any] = []
    go_on = threading.Event()

    def handler(job: ThreadJob) -> None:
        got.append(job.inbox.get())
        assert go_on.wait(10)
        for payload in job.inbox:
            got.append(payload)
        got.append("stopped")

    job = bench.begin(handler)
    await bench.heard(Started(7))
    for number in range(3):
        job.notify(note(f"n{number}", number))
    await until(lambda: got == [0])
    await bench.heard(Started(7))
    go_on.set()
    await until(lambda: got == [0, 1, 2])
    await until(lambda: len(bench.answers) == 4)
    job.stop()
    await bench.heard(Started(7), *(Noted(7, f"n{number}") for number in range(3)), Ended(7))
    assert got[-1] == "stopped"


@in_loop
async def test_the_worker_knows_of_a_notification_before_a_plain_function_handles_it(bench: Bench) -> None:
    told: list[bool] = []
    seen: list[bool] = []

    def handler(job: ThreadJob) -> None:
        for _ in job.inbox:
            seen.extend(told)
            raise LookupError("no")

    loop = asyncio.get_running_loop()
    bench.on_taken = lambda: loop.call_soon(told.append, True)
    bench.begin(handler).notify(note("n", 1, 3))
    error = "LookupError: no"
    await bench.heard(Started(7), Unhandled(7, "n", 3, error), Ended(7, error))
    assert seen == [True]


@in_loop
async def test_waits_of_a_plain_function_end_after_their_time_and_lose_nothing(bench: Bench) -> None:
    got: list[Any] = []
    late: list[bool] = []

    def handler(job: ThreadJob) -> None:
        while not job.stopping.is_set():
            try:
                got.append(job.inbox.get(timeout=0.001))
            except TimeoutError:
                late.append(True)

    job = bench.begin(handler)
    for number in range(300):
        job.notify(note(f"n{number:03}", number))
        await asyncio.sleep(0.0005 * (number % 5))
    await until(lambda: len(got) >= 300)
    assert got == list(range(300)) and late
    job.stop()
    await until(lambda: isinstance(bench.answers[-1], Ended))
    assert bench.answers[1:300] == [Noted(7, f"n{number:03}") for number in range(299)]


@in_loop
async def test_a_plain_function_may_acknowledge_each_notification_itself(bench: Bench) -> None:
    def handler(job: ThreadJob) -> None:
        kept = []
        for note in job.inbox.notes():
            kept.append(note)
            if len(kept) == 3:
                kept[2].ack()
                kept[0].ack()

    job = bench.begin(handler)
    for number in range(3):
        job.notify(note(f"n{number}", number))
    await bench.heard(Started(7), Noted(7, "n2"), Noted(7, "n0"))
    job.stop()
    await bench.heard(Started(7), Noted(7, "n2"), Noted(7, "n0"), Ended(7))
