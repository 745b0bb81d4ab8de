"""What runs of jobs that are functions have in common: coroutines, and functions in a thread."""

from __future__ import annotations

import asyncio

from celery_sticky.jobs.host.surroundings import Surroundings
from celery_sticky.jobs.inbox import Inbox, Notification
from celery_sticky.jobs.wire import Call, Calls, Ended, Failed, Noted, Start, Started, Taken, Unhandled

START_GRACE = 1.0
"""Seconds after which a function counts as started if it has neither called `started` nor raised."""


class FunctionRun:
    """A run from the call of the function until it has returned and nothing of it is left."""

    __slots__ = ("_error", "_grace", "_inbox", "_ref", "_say", "_started", "_stopping", "_tasks")

    def __init__(self, start: Start, here: Surroundings) -> None:
        self._ref, self._say, self._tasks = start.ref, here.say, here.tasks
        self._started = self._stopping = False
        self._error: str | None = None
        """Why the run is to end by itself; empty: without an error; None: it is not to end."""
        self._inbox = Inbox(self._begun, self._on_taken, self._on_acked)
        self._say(Calls(self._ref, Call.START))
        self._grace: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(START_GRACE, self._begun)

    def notify(self, note: Notification) -> None:
        """See `HostedRun`."""
        self._inbox.put(note)

    def end(self, error: str) -> None:
        """See `HostedRun`."""
        if self._error is None and not self._stopping:
            self._error = error
            self._inbox.failed = bool(error)
            self._interrupt()

    def stop(self) -> None:
        """See `HostedRun`. A function that goes on ends with the host."""
        self._stopping = True
        self._interrupt()

    def _interrupt(self) -> None:
        """Tell the function to end."""
        raise NotImplementedError

    def _on_taken(self, note: Notification) -> None:
        self._say(Taken(self._ref, note.id, note.delivery))

    def _on_acked(self, note: Notification) -> None:
        self._say(Noted(self._ref, note.id))

    def _begun(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if not self._started and not self._stopping:
            self._started = True
            self._say(Started(self._ref))

    async def _end_tasks(self, error: str) -> None:
        self._inbox.failed |= bool(error)
        await self._tasks.end(self._ref)

    def _finish(self, error: str) -> None:
        """Report the end. An error of the function counts less than what the job has said."""
        if self._error is not None:
            error = self._error
        if error and not self._stopping:
            for note in self._inbox.in_hand:
                self._say(Unhandled(self._ref, note.id, note.delivery, error))
        if error and not self._started and not self._stopping:
            self._stopping = True  # so that no start is reported after the failure
            self._say(Failed(self._ref, error))
        else:
            self._begun()
            self._say(Ended(self._ref, error))
