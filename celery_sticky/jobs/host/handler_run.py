"""The run of a job that is a class."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from celery_sticky.jobs.handler import JobHandler, JobSpec
from celery_sticky.jobs.host.surroundings import Answer, Surroundings, error_text, job_of
from celery_sticky.jobs.host.tasks import context_of
from celery_sticky.jobs.host.threads import Lane
from celery_sticky.jobs.inbox import Inbox, Notification
from celery_sticky.jobs.wire import Call, Calls, Ended, Failed, Noted, Start, Started, Taken, Unhandled, Waits

RETRY_FIRST, RETRY_LAST = 1.0, 60.0
"""Seconds until a notification that was not handled is delivered again: first and maximum; the pause doubles."""


class HandlerRun:
    """A job that is a class: a task calls its methods one after the other, and exists only while there is a call."""

    __slots__ = (
        "_error",
        "_handler",
        "_job",
        "_kind",
        "_max_deliveries",
        "_notes",
        "_place",
        "_ref",
        "_retry",
        "_say",
        "_started",
        "_stop_waits",
        "_stopping",
        "_task",
        "_tasks",
        "_threads",
    )

    def __init__(self, spec: JobSpec, start: Start, here: Surroundings) -> None:
        self._ref, self._kind, self._say, self._threads = start.ref, spec.handler, here.say, here.threads
        self._tasks = here.tasks
        self._started = self._stopping = self._stop_waits = False
        self._error: str | None = None
        """Why the run is to end by itself; empty: without an error; None: it is not to end."""
        self._max_deliveries = start.max_deliveries
        self._job = job_of(spec, start, here, _nothing, Inbox(_nothing, _nothing, _nothing), self.end)
        self._handler: JobHandler | None = None
        self._notes: deque[Notification] | None = None
        self._retry: asyncio.TimerHandle | None = None
        """Set while notifications wait because the job could not handle the first of them."""
        self._place: tuple[Lane, asyncio.Future[bool]] | None = None
        """Where a call waits for a thread."""
        self._task: asyncio.Task[None] | None = None
        self._go_on()

    def notify(self, note: Notification) -> None:
        """See `HostedRun`."""
        if self._notes is None:
            self._notes = deque()
        self._notes.append(note)
        self._go_on()

    def stop(self) -> None:
        """See `HostedRun`. The current call completes first; calls that wait, and notifications, are left."""
        if self._stopping:
            return
        self._stopping = True
        if self._place is not None:
            lane, place = self._place
            lane.withdraw(place)
        elif self._handler is not None and not self._started:
            self._tell_stop_waits()  # the start has its own timeout
        self._go_on()

    def end(self, error: str) -> None:
        """See `HostedRun`. The current call completes first, then `stop` is called."""
        if self._error is None and not self._stopping:
            self._error = error
            if self._place is not None:
                lane, place = self._place
                lane.withdraw(place)
            self._go_on()

    @property
    def _is_over(self) -> bool:
        return self._stopping or self._error is not None

    def _go_on(self) -> None:
        if self._is_over and self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._task is None and self._retry is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), context=context_of(self._ref))

    async def _work(self) -> None:
        if not self._started and not await self._start():
            return
        while self._notes and not self._is_over and self._retry is None:
            await self._hand_over(self._notes)
        if self._is_over:
            error = await self._call("stop") or ""
            await self._tasks.end(self._ref)
            self._say(Ended(self._ref, self._error or error))
        else:
            self._task, self._notes = None, self._notes or None

    async def _hand_over(self, notes: deque[Notification]) -> None:
        note = notes[0]
        error = await self._call("notify", note.payload)
        if error == "":
            notes.popleft()
            self._say(Noted(self._ref, note.id))
        elif error is not None:
            self._say(Unhandled(self._ref, note.id, note.delivery, error))
            if note.delivery >= self._max_deliveries:
                notes.popleft()  # the worker has the same limit, and buries it
            elif not self._is_over:
                pause = min(RETRY_FIRST * 2.0 ** min(note.delivery - 1, 10), RETRY_LAST)
                self._retry = asyncio.get_running_loop().call_later(pause, self._try_again)
                note.delivery += 1

    def _try_again(self) -> None:
        self._retry = None
        self._go_on()

    async def _start(self) -> bool:
        error = await self._call("start")
        self._started = error == ""
        if self._started:
            self._say(Started(self._ref))
        else:
            await self._tasks.end(self._ref)
            self._say(Ended(self._ref) if error is None else Failed(self._ref, error))
        return self._started

    async def _call(self, name: str, *args: Any) -> str | None:
        """Call a method in the loop or in a thread; return its error, an empty text, or None: it was not called."""
        try:
            owner = self._kind if self._handler is None else self._handler
            if inspect.iscoroutinefunction(getattr(owner, name)):
                if await self._is_withdrawn(name):
                    return None
                await self._method(name)(self._job, *args)
            else:
                return await self._call_in_thread(name, *args)
        except BaseException as exc:  # SystemExit too is an error of this job only
            self._job.logger.exception("its `%s` raised an error", name)
            return error_text(exc)
        return ""

    async def _call_in_thread(self, name: str, *args: Any) -> str | None:
        lane = self._threads.lane(name)
        place = lane.enter()
        try:
            await self._wait(name, lane, place)
            if await self._is_withdrawn(name):
                return None
            result = await self._threads.call(self._method(name), self._job, *args)
        finally:
            if place.done() and not place.cancelled() and place.result():
                lane.leave()
        if inspect.isawaitable(result):  # an async method hidden by a decorator
            await result
        return ""

    async def _wait(self, name: str, lane: Lane, place: asyncio.Future[bool]) -> None:
        if place.done():
            return
        self._place = lane, place
        if name == Call.START:
            self._say(Waits(self._ref, Call.START))
        elif name == Call.STOP:
            self._tell_stop_waits()
        try:
            await place
        finally:
            self._place = None

    async def _is_withdrawn(self, name: str) -> bool:
        """Return whether a call is no longer wanted; tell the worker that it begins otherwise."""
        if name == Call.STOP:
            if self._stop_waits:
                self._say(Calls(self._ref, Call.STOP))
            return False
        if not self._is_over:
            self._say(self._beginning(name))
            await asyncio.sleep(0)  # so that the host has said so if the call blocks the loop or ends the process
        return self._is_over

    def _beginning(self, name: str) -> Answer:
        if self._notes and name != Call.START:
            return Taken(self._ref, self._notes[0].id, self._notes[0].delivery)
        return Calls(self._ref, Call.START)

    def _tell_stop_waits(self) -> None:
        self._stop_waits = True
        self._say(Waits(self._ref, Call.STOP))

    def _method(self, name: str) -> Callable[..., Any]:
        if self._handler is None:
            self._handler = cast(type[JobHandler], self._kind)()
        method: Callable[..., Any] = getattr(self._handler, name)
        return method


def _nothing(*_: Any) -> None:
    pass
