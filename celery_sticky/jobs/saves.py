"""The checkpoints that the runs of a job host have sent and that are not stored yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from celery_sticky.errors import BlockingCall, SaveRefused
from celery_sticky.jobs import wire


class Saves:
    """All checkpoints of one host. Its event loop is `loop`; `say` sends a message to the worker."""

    def __init__(
        self, say: Callable[[wire.Save], None], runs: Callable[[int], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`runs` returns whether the run of a ref is under way."""
        self._say, self._runs, self._loop = say, runs, loop
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def send(self, ref: int, saved: bytes) -> asyncio.Future[None]:
        """Send a run's checkpoint; the future is done when it is stored.

        Raises:
            BlockingCall: this is not the host's event loop.
            SaveRefused: the run has ended; this may be a thread that it left behind.
        """
        if asyncio._get_running_loop() is not self._loop:
            raise BlockingCall("`job.save` is for coroutines: call `job.save_sync` in a thread")
        if not self._runs(ref):
            raise SaveRefused()
        number = next(self._numbers)
        stored = self._waiting[number] = self._loop.create_future()
        self._say(wire.Save(ref, number, saved.decode()))
        return stored

    def send_and_wait(self, ref: int, saved: bytes) -> None:
        """Send a run's checkpoint, and wait until it is stored.

        Raises:
            BlockingCall: this thread runs an event loop.
            SaveRefused: it is not stored.
        """
        if asyncio._get_running_loop() is not None:
            raise BlockingCall("`job.save_sync` would block the event loop: use `await job.save(…)`")

        async def send() -> None:
            await self.send(ref, saved)

        asyncio.run_coroutine_threadsafe(send(), self._loop).result()

    def answered(self, answer: wire.Saved | wire.SaveRefused) -> None:
        """Take in the worker's answer."""
        stored = self._waiting.pop(answer.number, None)
        if stored is None or stored.done():  # the caller was cancelled
            return
        if isinstance(answer, wire.Saved):
            stored.set_result(None)
        else:
            stored.set_exception(SaveRefused())
