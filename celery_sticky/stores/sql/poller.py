"""Waits for signals: until the ear hears of something, or else by looking again and again with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_sticky.errors import StoreUnavailable
from celery_sticky.sql import Database
from celery_sticky.sql.bell import HEARTBEAT, Ring, Topic
from celery_sticky.sql.ear import Hearing, hear
from celery_sticky.sql.pauses import LONG_PAUSE
from celery_sticky.waker import Waker

Look = Callable[[], Sequence[Any]]
"""Returns what has changed since it was last called, by one small statement."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds between two looks while nothing is heard: the first pause and the longest."""
HEARTBEAT_PAUSE = 1.0
"""Least seconds between two looks because of heartbeats: many members send many."""


class Watched(NamedTuple):
    """A subscription of one store."""

    look: Look
    topics: Collection[Topic]


class Poller:
    """The subscriptions of the stores of one connection. One thread waits; any thread may wake it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched: dict[Hashable, Watched] = {}
        self._heard: dict[Hashable, Sequence[Any]] = {}
        """Store → signals that were not taken yet."""
        self._hearing: Hearing | None = None
        self._waker: Waker | None = None
        self._woken = False
        """Whether `wake` was called."""
        self._rung: set[Topic] = set()
        """What was heard and not looked at yet."""
        self._looked = self._due = 0.0
        """When it last looked at anything, and when to look at everything, on the monotonic clock."""
        self._pause = FIRST_PAUSE

    def watch(self, store: Hashable, look: Look, topics: Collection[Topic], timeout: float) -> Sequence[Any]:
        """See the store's `watch`. Signals for other stores are kept for them, and end the wait.

        `topics` are rung when the store has signals.
        """
        if store not in self._watched:
            if not self._watched:
                self._begin()
            self._watched[store] = Watched(look, topics)  # before the look: what is rung after it counts
            try:
                look()
            except StoreUnavailable:
                del self._watched[store]
                raise
            return []
        self.wait(timeout)
        return self._heard.pop(store, [])

    def wait(self, timeout: float) -> None:
        """Wait until there are signals for any store, the time is up or `wake` is called.

        Raises:
            StoreUnavailable: each store must subscribe again.
        """
        assert self._waker is not None, "a store has subscribed"
        deadline = time.monotonic() + timeout
        while not self._heard:
            self._listen()
            now = time.monotonic()
            self._waker.wait(min(deadline, self._next()) - now, None)
            if self._woken:
                self._woken = False
                return
            self._look()
            if time.monotonic() >= deadline:
                return

    def take_all(self) -> Mapping[Any, Sequence[Any]]:
        """Return the signals, by store."""
        heard, self._heard = self._heard, {}
        return heard

    def wake(self) -> None:
        """See the store's `wake`."""
        self._woken = True
        if (waker := self._waker) is not None:
            waker.wake()

    def close(self) -> None:
        """Hear no more. May be called twice; the next subscription begins again."""
        self._watched.clear()
        hearing, self._hearing = self._hearing, None
        waker, self._waker = self._waker, None
        if hearing is not None:
            hearing.close()
        if waker is not None:
            waker.close()

    def _begin(self) -> None:
        if self._waker is None:
            self._waker = Waker()
            self._hearing = hear(self._database, self._waker.wake, self._wants)
        self._woken = False
        self._again(FIRST_PAUSE)

    def _wants(self, ring: Ring, topic: Topic) -> bool:
        """Return whether a topic is one of ours; our own heartbeats are no news."""
        if topic.startswith(HEARTBEAT) and ring.ringer == self._database.ringer:
            return False
        return any(topic in watched.topics for watched in list(self._watched.values()))

    def _listen(self) -> None:
        """Take in what was heard."""
        assert self._hearing is not None
        heard = self._hearing.take()
        self._rung.update(heard.topics)
        if heard.everything:  # the ear has just become deaf, or no longer is
            self._pause, self._due = FIRST_PAUSE, min(self._due, time.monotonic() + FIRST_PAUSE)

    def _next(self) -> float:
        """Return when to look next."""
        if not self._rung:
            return self._due
        only_heartbeats = all(topic.startswith(HEARTBEAT) for topic in self._rung)
        return min(self._due, self._looked + HEARTBEAT_PAUSE) if only_heartbeats else self._looked

    def _look(self) -> None:
        """Look at what is due now."""
        self._listen()
        now = time.monotonic()
        if now < self._next():
            return
        whole = now >= self._due
        concerned = {
            store: watched.look
            for store, watched in self._watched.items()
            if whole or not self._rung.isdisjoint(watched.topics)
        }
        self._rung.clear()
        try:
            found = {store: look() for store, look in concerned.items()}
        except StoreUnavailable:
            self._watched.clear()
            raise
        self._heard = {store: signals for store, signals in found.items() if signals}
        self._looked = time.monotonic()
        if whole or self._heard:
            self._again(FIRST_PAUSE if self._heard else min(2 * self._pause, LONGEST_PAUSE))

    def _again(self, pause: float) -> None:
        assert self._hearing is not None
        self._pause = pause
        self._due = time.monotonic() + (LONG_PAUSE if self._hearing.proven else pause)
