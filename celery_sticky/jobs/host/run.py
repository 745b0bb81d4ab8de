"""One run of a job in its host, from the start to the end reported to the worker. It runs in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, cast

from celery_sticky.jobs.handler import Job, JobHandler, JobSpec
from celery_sticky.jobs.wire import Ended, Failed, Noted, Start, Started

START_GRACE = 1.0
"""Seconds after which a coroutine counts as started if it has neither called `started` nor raised."""
MAX_ERROR = 2000
"""Maximum length of an error reported to the worker, in characters."""

Answer = Started | Failed | Ended | Noted


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all runs of a host share."""

    say: Callable[[Answer], None]
    threads: Executor
    """Runs code that is not async."""
    logger: logging.Logger
    """The logger behind `job.logger`."""


class HostedRun(Protocol):
    """A run of a job. It is over when it has sent `Failed` or `Ended`."""

    def notify(self, note: str, payload: Any) -> None:
        """Hand a notification to the job."""

    def stop(self) -> None:
        """Stop the job."""


def begin(spec: JobSpec, start: Start, here: Surroundings) -> HostedRun:
    """Start a job in the running loop."""
    return (HandlerRun if inspect.isclass(spec.handler) else CoroutineRun)(spec, start, here)


def error_text(error: BaseException) -> str:
    """Return the error's type and message in one line."""
    try:
        message = str(error)
    except Exception as exc:
        message = f"(its text cannot be read: {type(exc).__name__})"
    name, text = type(error).__name__, " ".join(message.split())
    line = f"{name}: {text}" if text else name
    return line[:MAX_ERROR].encode(errors="backslashreplace").decode()[:MAX_ERROR]


class CoroutineRun:
    """A job that is a coroutine: one task from start to end; stopping cancels it."""

    __slots__ = ("_grace", "_job", "_ref", "_say", "_started", "_stopping", "_task")

    def __init__(self, spec: JobSpec, start: Start, here: Surroundings) -> None:
        loop = asyncio.get_running_loop()
        self._ref, self._say = start.ref, here.say
        self._started = self._stopping = False
        self._job = _job_of(spec, start, here, self._begun, self._on_taken)
        self._task = loop.create_task(_outcome(spec.handler, self._job))
        self._task.add_done_callback(self._finish)
        self._grace: asyncio.TimerHandle | None = loop.call_later(START_GRACE, self._begun)

    def notify(self, note: str, payload: Any) -> None:
        """See `Run`."""
        self._job.inbox.put(note, payload)

    def _on_taken(self, note: str) -> None:
        self._say(Noted(self._ref, note))

    def stop(self) -> None:
        """See `Run`. A coroutine that ignores the cancellation ends with the host."""
        self._stopping = True
        self._task.cancel()

    def _begun(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if not self._started and not self._stopping:
            self._started = True
            self._say(Started(self._ref))

    def _finish(self, task: asyncio.Task[str]) -> None:
        error = task.result() if not task.cancelled() else "" if self._stopping else "CancelledError"
        if error and not self._started and not self._stopping:
            self._stopping = True  # so that no start is reported after the failure
            self._say(Failed(self._ref, error))
        else:
            self._begun()
            self._say(Ended(self._ref, error))


async def _outcome(function: Any, job: Job) -> str:
    try:
        await function(job)
    except asyncio.CancelledError:
        raise
    except BaseException as exc:  # SystemExit must end only this job: raised in a task, it would end the loop
        job.logger.exception("raised an error")
        return error_text(exc)
    return ""


class HandlerRun:
    """A job that is a class: a task calls its methods one after the other, and exists only while there is a call."""

    __slots__ = ("_handler", "_job", "_kind", "_notes", "_ref", "_say", "_stopping", "_task", "_threads")

    def __init__(self, spec: JobSpec, start: Start, here: Surroundings) -> None:
        self._ref, self._kind, self._say, self._threads = start.ref, spec.handler, here.say, here.threads
        self._stopping = False
        self._job = _job_of(spec, start, here, _nothing, _nothing)
        self._handler: JobHandler | None = None
        self._notes: deque[tuple[str, Any]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._go_on()

    def notify(self, note: str, payload: Any) -> None:
        """See `Run`."""
        if self._notes is None:
            self._notes = deque()
        self._notes.append((note, payload))
        self._go_on()

    def stop(self) -> None:
        """See `Run`. The current call completes first; notifications that wait are left."""
        self._stopping = True
        self._go_on()

    def _go_on(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        if self._handler is None and not await self._start():
            return
        while self._notes and not self._stopping:
            note, payload = self._notes.popleft()
            await self._call("notify", payload)
            self._say(Noted(self._ref, note))
        if self._stopping:
            self._say(Ended(self._ref, await self._call("stop")))
        else:
            self._notes = self._task = None

    async def _start(self) -> bool:
        error = await self._call("start")
        self._say(Failed(self._ref, error) if error else Started(self._ref))
        return not error

    async def _call(self, name: str, *args: Any) -> str:
        """Call a method in the loop or in a thread; return its error, or an empty text."""
        try:
            if self._handler is None:
                self._handler = cast(type[JobHandler], self._kind)()
            method = getattr(self._handler, name)
            if inspect.iscoroutinefunction(method):
                await method(self._job, *args)
            else:
                await self._in_thread(method, *args)
        except BaseException as exc:  # SystemExit too is an error of this job only
            self._job.logger.exception("its `%s` raised an error", name)
            return error_text(exc)
        return ""

    async def _in_thread(self, method: Callable[..., Any], *args: Any) -> None:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, _guarded, method, self._job, *args)
        if inspect.isawaitable(result):  # an async method hidden by a decorator
            await result


def _guarded(method: Callable[..., Any], *args: Any) -> Any:
    try:
        return method(*args)
    except StopIteration as exc:  # a future cannot hold StopIteration and would never complete
        raise RuntimeError("StopIteration was raised") from exc


def _job_of(
    spec: JobSpec,
    start: Start,
    here: Surroundings,
    started: Callable[[], None],
    taken: Callable[[str], None],
) -> Job:
    return Job(  # shares the values of all runs of the job instead of copying them
        name=spec.name,
        key=start.key,
        keyspace=spec.keyspace,
        id=start.id,
        epoch=start.epoch,
        attempt=start.attempt,
        payload=start.payload,
        worker=start.worker,
        started=started,
        taken=taken,
        logger=here.logger,
    )


def _nothing(*_: Any) -> None:
    pass
