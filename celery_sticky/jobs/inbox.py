"""The notifications of a run that is a function, and which of them it has in hand.

A notification is in hand from the moment in which the run takes it until it is acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Self
from weakref import ref as weakref

Taker = asyncio.Task[Any] | threading.Thread
"""A task or thread that acknowledges a notification by asking for the next one."""


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function in the loop's thread: at once if this is that thread."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        function(*args)
    else:
        loop.call_soon_threadsafe(function, *args)


class Notification:
    """A notification, as `job.inbox.notes()` yields it."""

    __slots__ = ("_ack", "delivery", "id", "payload", "taker")

    def __init__(self, id: str, payload: Any, delivery: int) -> None:  # noqa: A002  as of a job
        self.id = id
        self.payload = payload
        self.delivery = delivery
        """1 at first; it grows with each delivery that failed."""
        self.taker: weakref[Taker] | None = None
        """The task or thread that acknowledges it by asking for the next one; None: its `ack` does that."""
        self._ack: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<notification {self.id}, delivery {self.delivery}>"

    def ack(self) -> None:
        """Acknowledge: the notification is handled and does not come again. Any thread may call this, also twice."""
        if (ack := self._ack) is not None:
            ack()

    def hand_to(self, inbox: Inbox | None) -> None:
        """Note whose run has it in hand; None: no longer any."""
        loop = asyncio.get_running_loop()
        self._ack = partial(call_in_loop, loop, inbox.ack, self) if inbox is not None else None


class Inbox:
    """The notifications of a coroutine job, in order: `async for payload in job.inbox`, or `await job.inbox.get()`.

    A task that asks for the next payload acknowledges the one it has got before. It also acknowledges those of tasks
    that have ended. The notifications of `notes()` are only acknowledged by their `ack()`.
    """

    __slots__ = ("_acked", "_begun", "_in_hand", "_notes", "_taken", "_waiting", "failed")

    def __init__(
        self, begun: Callable[[], None], taken: Callable[[Notification], None], acked: Callable[[Notification], None]
    ) -> None:
        self._begun, self._taken, self._acked = begun, taken, acked
        self.failed = False
        """True if the run has failed: asking for the next notification acknowledges none any more."""
        # Thousands of jobs may wait here for notifications that never come, so these are created on first use.
        self._notes: deque[Notification] | None = None
        self._in_hand: dict[str, Notification] | None = None
        self._waiting: list[asyncio.Future[None]] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return self.get()

    def get(self) -> Coroutine[Any, Any, Any]:
        """Wait for a notification and return its payload. Waiting counts as the job having started."""
        # The task that calls this, also where `asyncio.wait_for` or `asyncio.create_task` makes one to wait.
        return self._get(asyncio.current_task())

    async def _get(self, taker: Taker | None) -> Any:
        return (await self.take(taker or asyncio.current_task())).payload

    async def take(self, taker: Taker | None = None) -> Notification:
        """Wait for a notification. A taker acknowledges what it took before; without one, `ack` has to be called."""
        if taker is not None:
            self._ack_before(taker)
        note = await self._take()
        note.taker = weakref(taker) if taker is not None else None
        return note

    def _ack_before(self, taker: Taker) -> None:
        loop = asyncio.get_running_loop()
        for note in self.in_hand:
            if note.taker is None:
                continue
            before = note.taker()
            if before is taker:
                self._ack_left(note)
            elif before is None or _has_ended(before):
                # Two turns later: a run fails meanwhile if nobody looks at the error of its task.
                loop.call_soon(loop.call_soon, self._ack_left, note)

    def _ack_left(self, note: Notification) -> None:
        if not self.failed:
            self.ack(note)

    async def notes(self) -> AsyncIterator[Notification]:
        """Yield notifications; call `ack()` of each once it is handled, in any order."""
        while True:
            yield await self.take()

    @property
    def in_hand(self) -> list[Notification]:
        """The notifications that were taken and not acknowledged."""
        return list(self._in_hand.values()) if self._in_hand else []

    def put(self, note: Notification) -> None:
        """Add a notification."""
        if self._notes is None:
            self._notes = deque()
        self._notes.append(note)
        self._wake()

    def ack(self, note: Notification) -> None:
        """Acknowledge a notification in hand."""
        if self._in_hand and self._in_hand.pop(note.id, None) is not None:
            note.hand_to(None)
            self._acked(note)

    def put_back(self, note: Notification) -> None:
        """Take back a notification that nobody has seen."""
        if self._in_hand and self._in_hand.pop(note.id, None) is not None and self._notes is not None:
            note.hand_to(None)
            self._notes.appendleft(note)
            self._wake()

    async def _take(self) -> Notification:
        self._begun()
        while not self._notes:
            await self._arrival()
        note = self._notes.popleft()
        self._taken(note)
        try:
            await asyncio.sleep(0)  # so that the worker is told even if the job then ends the process
        except BaseException:
            self._notes.appendleft(note)
            self._wake()
            raise
        if self._in_hand is None:
            self._in_hand = {}
        self._in_hand[note.id] = note
        note.hand_to(self)
        return note

    async def _arrival(self) -> None:
        if self._waiting is None:
            self._waiting = []
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(None)


def _has_ended(taker: Taker) -> bool:
    return not taker.is_alive() if isinstance(taker, threading.Thread) else taker.done()
