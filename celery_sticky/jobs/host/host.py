"""The job host: a process that runs jobs for a worker, in one event loop and a pool of threads.

It does not outlive what it relies on. When the trust ends, or the worker is gone while jobs run, it kills its own
process group, which includes everything that jobs have started. `membership.deadline` does that in a thread, so it
works while a handler blocks the loop. If all threads are blocked, the worker kills the host from outside. The watchdog
tells the worker, and the log, of a job that blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from celery_sticky.jobs.handler import JobSpecs
from celery_sticky.jobs.host.end_of_trust import EndOfTrust
from celery_sticky.jobs.host.run import begin
from celery_sticky.jobs.host.surroundings import Answer, HostedRun, Surroundings, error_text
from celery_sticky.jobs.host.tasks import RunTasks, WatchedCoroutine
from celery_sticky.jobs.host.threads import HandlerThreads
from celery_sticky.jobs.host.watchdog import WARN_AFTER, Watchdog
from celery_sticky.jobs.inbox import Notification, call_in_loop
from celery_sticky.jobs.marks import Marks
from celery_sticky.jobs.saves import Saves
from celery_sticky.jobs.wire import (
    Ended,
    Failed,
    Message,
    Notify,
    Ping,
    Pong,
    Ready,
    Saved,
    SaveRefused,
    Start,
    Stop,
    decode,
    encode,
)
from celery_sticky.membership.deadline import Deadline, Reliance, TrustWatch
from celery_sticky.membership.lease import Lease
from celery_sticky.platform.reaper import kill_group

logger = logging.getLogger("celery_sticky.jobs")

PARENT_STEP = 1.0
"""Seconds between checks of the parent: a child of its pool may still hold the parent's end of the socket open."""


def run_host(
    specs: JobSpecs,
    connection: Any,
    lease: Lease,
    parent: int,
    *,
    report: int,
    marks: Marks,
    threads: int,
    watchdog: float = 0.0,
    stop_before: float = 0.0,
    grace: float = 0.0,
    logger_name: str = logger.name,
) -> None:
    """Run the jobs that the worker, process `parent`, orders over a socket; return when it hung up and nothing runs.

    At most `threads` calls of a kind that are not async run at a time. The worker is told over the descriptor `report`
    of a job that blocks the loop; it kills the host after `watchdog` seconds (0: never). `marks` say what is executed.
    Jobs are stopped `stop_before` seconds before the end of trust, and killed `grace` seconds after it.
    Jobs log to the logger of the given name. Call this in the main thread of a process that leads its group.
    """
    leave_signals_to_worker()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    tasks, handler_threads = RunTasks(marks), HandlerThreads(threads, marks)
    loop.set_task_factory(tasks.create)
    job_logger = logging.getLogger(logger_name)

    def surroundings(say: Callable[[Answer], None], saves: Saves) -> Surroundings:
        return Surroundings(say, handler_threads, tasks, job_logger, saves)

    host = _Host(loop, specs, lease, parent, surroundings, stop_before)
    loop.set_exception_handler(host.take_in_error)
    Deadline(TrustWatch(lease, lambda: host.relied_on, lambda _: _die(), grace=grace), parent=parent).start()
    Watchdog(report, host.describe, warn_after=min(WARN_AFTER, watchdog / 2 or WARN_AFTER)).start(loop)
    loop.run_until_complete(loop.create_connection(lambda: host, sock=connection))
    while not host.over:
        try:
            loop.run_forever()  # a job may stop it
        except (SystemExit, KeyboardInterrupt):
            logger.exception("jobs: a task created by a job raised an exit exception; the job host continues")
    loop.close()


def leave_signals_to_worker() -> None:
    """Ignore the signals that ask a process to end: the worker receives them too, and stops the jobs in order.

    The signals get handlers instead of being ignored, because processes started by jobs would inherit ignored signals.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=lambda number=number: signal.signal(number, signal.SIG_DFL))


def _die() -> None:
    kill_group(os.getpid())  # without logging: the cause may be a thread that hangs with a log handler's lock


class _Host(asyncio.Protocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        specs: JobSpecs,
        lease: Lease,
        parent: int,
        surroundings: Callable[[Callable[[Answer], None], Saves], Surroundings],
        stop_before: float,
    ) -> None:
        self.relied_on: tuple[Reliance, ...] = ()
        """The memberships that runs rely on. Replaced as a whole, because another thread reads it."""
        self.over = False
        self._loop, self._specs, self._lease, self._parent = loop, specs, lease, parent
        self._saves = Saves(self._say, lambda ref: ref in self._runs, loop)
        self._surroundings = surroundings(self._hear, self._saves)
        self._runs: dict[int, tuple[HostedRun, Reliance, Start]] = {}
        self._by_reliance: Counter[Reliance] = Counter()
        self._end_of_trust = EndOfTrust(lease, self._started_runs, stop_before)
        self._rest = b""
        self._answers: list[Message] = []

    # -- callbacks of the loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._say(Ready(self._specs.names()))
        self._look_for_parent()
        self._end_of_trust.start(self._loop)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._obey(decode(line))
            except Exception:
                logger.exception("jobs: ignored an invalid message from the worker: %.500r", line)

    def pause_writing(self) -> None:
        self._transport.pause_reading()  # while the worker does not take our answers, take no more orders

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def eof_received(self) -> None:
        if self._runs:
            _die()
        self._flush()  # then the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        if self._runs:
            _die()
        self.over = True
        self._loop.stop()

    def _look_for_parent(self) -> None:
        if os.getppid() != self._parent:
            self.connection_lost(None)
        else:
            self._loop.call_later(PARENT_STEP, self._look_for_parent)

    # -- messages from and to the worker -------------------------------------------------------

    def _obey(self, message: Message) -> None:
        match message:
            case Start():
                self._start(message)
            case Stop(ref):
                if ref in self._runs:  # else the run ended while this message was under way
                    self._runs[ref][0].stop()
            case Notify(ref, note, payload, delivery):
                if ref in self._runs:
                    self._runs[ref][0].notify(Notification(note, payload, delivery))
            case Saved() | SaveRefused():
                self._saves.answered(message)
            case Ping():
                self._say(Pong())
            case _:
                raise ValueError(f"{type(message).__name__} is not a message to a host")

    def _start(self, start: Start) -> None:
        if start.ref in self._runs:
            raise ValueError(f"{start.ref} runs already")
        spec = self._specs.find(start.keyspace, start.name)
        if spec is None:
            names = ", ".join(self._specs.names()) or "none"
            self._say(
                Failed(start.ref, f"no job {start.keyspace}/{start.name} in this worker's app; its jobs: {names}")
            )
            return
        reliance = (spec.keyspace, start.membership)
        self._rely(reliance, 1)
        if not self._lease.trusted(*reliance):
            _die()
        self._runs[start.ref] = (begin(spec, start, self._surroundings), reliance, start)

    def _started_runs(self) -> dict[int, tuple[HostedRun, Start]]:
        return {ref: (run, start) for ref, (run, _, start) in self._runs.items()}

    def _hear(self, answer: Answer) -> None:
        self._say(self._end_of_trust.answer(answer))
        if isinstance(answer, Failed | Ended):
            _, reliance, _ = self._runs.pop(answer.ref)
            self._rely(reliance, -1)

    def take_in_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End a run if nobody has retrieved the error of a task that it has created. Any thread may notice that."""
        loop.default_exception_handler(context)
        task, error = context.get("future"), context.get("exception")
        coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
        if isinstance(coroutine, WatchedCoroutine) and error is not None:
            call_in_loop(loop, self._end, coroutine.run, f"a task that it created raised {error_text(error)}")

    def _end(self, ref: int, error: str) -> None:
        if ref in self._runs:
            self._runs[ref][0].end(error)

    def describe(self, ref: int) -> tuple[str, str]:
        """Return name and key of a run. Any thread may ask."""
        run = self._runs.get(ref)
        return (run[2].name, run[2].key) if run is not None else ("", "")

    def _rely(self, reliance: Reliance, change: int) -> None:
        self._by_reliance[reliance] += change
        self.relied_on = tuple(+self._by_reliance)

    def _say(self, message: Message) -> None:
        if not self._answers:
            self._loop.call_soon(self._flush)
        self._answers.append(message)

    def _flush(self) -> None:
        answers, self._answers = self._answers, []
        self._transport.write(b"".join(map(encode, answers)))
