"""The notifications of a job that is a plain function, for its thread. They are taken in the loop of the host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from celery_sticky.jobs.inbox import Inbox, Notification, Taker


class ThreadInbox:
    """The notifications of a job, in order: `for payload in job.inbox`, or `job.inbox.get(timeout=1)`.

    Both end when the job is to stop. A thread that asks for the next payload acknowledges the one it has got before.
    """

    def __init__(self, inbox: Inbox, loop: asyncio.AbstractEventLoop) -> None:
        self._inbox, self._loop = inbox, loop
        self._waits: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.get()
        except TimeoutError:
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Any:
        """Wait for a notification and return its payload. Waiting counts as the job having started.

        Raises:
            TimeoutError: none came within `timeout` seconds (None: any time), or the job is to stop.
        """
        return self._wait(threading.current_thread(), timeout).payload

    def notes(self) -> Iterator[Notification]:
        """Yield notifications until the job is to stop; call `ack()` of each once it is handled, in any order."""
        try:
            while True:
                yield self._wait(None, None)
        except TimeoutError:
            return

    def stop(self) -> None:
        """End all waits, and those that come. Call this in the loop."""
        self._stopping = True
        for wait in self._waits:
            wait.cancel()

    def _wait(self, taker: Taker | None, timeout: float | None) -> Notification:
        told: Future[Notification] = Future()
        self._loop.call_soon_threadsafe(self._begin, taker, told)
        try:
            return told.result(timeout)
        except CancelledError:
            raise TimeoutError("the job is to stop") from None
        except TimeoutError:
            if not told.cancel():
                return told.result()  # it came in this moment
            raise TimeoutError(f"no notification came within {timeout:g} s") from None

    # -- in the loop ---------------------------------------------------------------------------

    def _begin(self, taker: Taker | None, told: Future[Notification]) -> None:
        if self._stopping:
            told.cancel()
        if told.cancelled():  # or its time is up already: the next wait must not find it at work
            return
        wait = self._loop.create_task(self._take(taker, told))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        told.add_done_callback(lambda _: self._loop.call_soon_threadsafe(wait.cancel) if told.cancelled() else None)

    async def _take(self, taker: Taker | None, told: Future[Notification]) -> None:
        try:
            note = await self._inbox.take(taker)
        except asyncio.CancelledError:
            told.cancel()
            raise
        if told.set_running_or_notify_cancel():
            told.set_result(note)
        else:
            self._inbox.put_back(note)
