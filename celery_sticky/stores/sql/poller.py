"""Waits for signals by looking again and again, with pauses that grow while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from celery_sticky.errors import StoreUnavailable
from celery_sticky.platform.native import original

Look = Callable[[], Sequence[Any]]
"""Returns what has changed since it was last called, by one small statement."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds between two looks: the first pause and the longest."""


class Poller:
    """The subscriptions of the stores of one connection. One thread waits; any thread may wake it."""

    def __init__(self) -> None:
        self._looks: dict[Hashable, Look] = {}
        self._heard: dict[Hashable, Sequence[Any]] = {}
        """Store → signals that were not taken yet."""
        self._wake = original("threading", "Event")()  # between threads, also beside greenlets
        self._due = 0.0
        """When to look next, on the monotonic clock."""
        self._pause = FIRST_PAUSE

    def watch(self, store: Hashable, look: Look, timeout: float) -> Sequence[Any]:
        """See the store's `watch`. Signals for other stores are kept for them, and end the wait."""
        if store not in self._looks:
            look()
            if not self._looks:
                self._wake.clear()
                self._again(FIRST_PAUSE)
            self._looks[store] = look
            return []
        self.wait(timeout)
        return self._heard.pop(store, [])

    def wait(self, timeout: float) -> None:
        """Wait until there are signals for any store, the time is up or `wake` is called.

        Raises:
            StoreUnavailable: each store must subscribe again.
        """
        deadline = time.monotonic() + timeout
        while not self._heard:
            if self._wake.wait(max(0.0, min(deadline, self._due) - time.monotonic())):
                self._wake.clear()
                return
            if time.monotonic() >= self._due:
                self._look()
            if time.monotonic() >= deadline:
                return

    def take_all(self) -> Mapping[Any, Sequence[Any]]:
        """Return the signals, by store."""
        heard, self._heard = self._heard, {}
        return heard

    def wake(self) -> None:
        """See the store's `wake`."""
        self._wake.set()

    def _look(self) -> None:
        try:
            found = {store: look() for store, look in self._looks.items()}
        except StoreUnavailable:
            self._looks.clear()
            raise
        self._heard = {store: signals for store, signals in found.items() if signals}
        self._again(FIRST_PAUSE if self._heard else min(2 * self._pause, LONGEST_PAUSE))

    def _again(self, pause: float) -> None:
        self._pause = pause
        self._due = time.monotonic() + pause
