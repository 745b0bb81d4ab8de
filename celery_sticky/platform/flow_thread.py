"""One thread for the flows of many keyspaces, over one client of their store server.

It makes one request after the other, urgent ones first, then the one that has waited longest. If there are none, it
waits for the signals of all keyspaces at once, until the next deadline of any flow.

A server that does not answer costs one timeout for all keyspaces, not one for each: a request without an answer fails
those of the others that are due by then. A refusal, or a record that cannot be used, is of one keyspace only.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Generic

from celery_sticky.errors import StoreUnavailable
from celery_sticky.platform.aside_threads import AsideThreads
from celery_sticky.platform.native import Section, start_native_thread
from celery_sticky.platform.seat import ERROR_PAUSE, Kept, Routine, Seat
from celery_sticky.stores.shared import SharedClient

logger = logging.getLogger("celery_sticky")

LONGEST_WAIT = 30.0
DEAF_STEP = 0.05
"""Longest sleep in seconds while no store is subscribed, because nothing can end it early."""


class FlowThread(Generic[Kept]):
    """Runs routines, from the first one that is added until the last one has ended. Any thread may use it."""

    def __init__(
        self,
        open_client: Callable[[], SharedClient],
        *,
        urgent: Collection[str] = (),
        spawn: Callable[[Callable[[], None]], Any] = start_native_thread,
    ) -> None:
        """`urgent` are the verbs of the store that go first; `spawn` starts a thread."""
        self._open_client, self._urgent, self._spawn = open_client, urgent, spawn
        self._client: SharedClient | None = None
        self._seats: list[Seat[Kept]] = []
        self._arrived: deque[Seat[Kept]] = deque()
        # Greenlets need no threads beside them.
        self._aside_threads = AsideThreads() if spawn is start_native_thread else None
        self._section = Section()
        self._running = False

    def seat(self, routine: Routine[Kept]) -> Seat[Kept]:
        """Return a seat for a routine. Keep it where `wake` is called before you `add` it, so that no wake is lost."""
        return Seat(routine, self._wake, self._spawn if self._aside_threads is None else self._aside_threads.run)

    def add(self, seat: Seat[Kept]) -> None:
        """Run the routine of a seat, and start the thread if it does not run."""
        with self._section:
            self._arrived.append(seat)
            starts, self._running = not self._running, True
        if starts:
            self._spawn(self._run)
        else:
            self._wake()

    def _wake(self) -> None:
        if (client := self._client) is not None:
            client.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._seated():
            try:
                self._round()
            except Exception:
                logger.exception("unexpected error in a thread of celery-sticky; it continues in %g s", ERROR_PAUSE)
                time.sleep(ERROR_PAUSE)

    def _seated(self) -> bool:
        """Seat those that have arrived, and end those that were stopped; False: nobody is left."""
        with self._section:
            while self._arrived:
                self._seats.append(self._arrived.popleft())
        ending = [seat for seat in self._seats if seat.over]
        if ending:
            self._seats = [seat for seat in self._seats if seat not in ending]
            if not self._seats:
                self._close()
            for seat in ending:
                seat.end()
        with self._section:
            self._running = bool(self._seats or self._arrived)
            return self._running

    def _close(self) -> None:
        if self._aside_threads is not None:
            self._aside_threads.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _round(self) -> None:
        self._wait()
        now = time.monotonic()
        for seat in self._seats:
            seat.proceed(now)
        if asking := [seat for seat in self._seats if seat.asks]:
            self._ask(min(asking, key=lambda seat: seat.urgency(self._urgent)))

    def _ask(self, seat: Seat[Kept]) -> None:
        error = seat.ask(self._opened)
        if error is None:
            return
        now = time.monotonic()
        for other in self._seats:
            if other is not seat:
                other.proceed(now)
                if other.asks:
                    same = StoreUnavailable(str(error))
                    same.__cause__ = error.__cause__
                    other.fail(same)

    def _opened(self) -> SharedClient:
        if self._client is None:
            self._client = self._open_client()
        return self._client

    def _wait(self) -> None:
        """Wait until a flow can go on, by its deadline, by signals or by what another thread did."""
        pause = min(LONGEST_WAIT, max(0.0, min(seat.due for seat in self._seats) - time.monotonic()))
        listening = [seat for seat in self._seats if seat.listening]
        if not listening or self._client is None:
            if pause > 0:
                time.sleep(min(pause, DEAF_STEP))
            return
        try:
            heard = self._client.watch(pause)
        except StoreUnavailable as error:
            for seat in listening:
                seat.lose(error)
            return
        if heard:
            for seat in listening:
                seat.hear(heard.get(seat.store, ()))
