"""Waits for signals by looking again and again, with pauses that grow while nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from celery_sticky.errors import StoreUnavailable

Heard = TypeVar("Heard")
"""A signal."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds between two looks: the first pause and the longest."""


class Poller(Generic[Heard]):
    """The subscription of one store. One thread waits; any thread may wake it."""

    def __init__(self, look: Callable[[], Sequence[Heard]]) -> None:
        """`look` returns what has changed since it was last called, by one small statement."""
        self._look = look
        self._wake = threading.Event()
        self._due: float | None = None
        """When to look next, on the monotonic clock; None: not subscribed."""
        self._pause = FIRST_PAUSE

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        deadline = time.monotonic() + timeout
        if self._due is None:
            self._look()
            self._again(FIRST_PAUSE)
            self._wake.clear()
            return []
        while True:
            if self._wake.wait(max(0.0, min(deadline, self._due) - time.monotonic())):
                self._wake.clear()
                return []
            if time.monotonic() >= self._due and (signals := self._found()):
                return signals
            if time.monotonic() >= deadline:
                return []

    def wake(self) -> None:
        """See the store's `wake`."""
        self._wake.set()

    def _found(self) -> Sequence[Heard]:
        try:
            signals = self._look()
        except StoreUnavailable:
            self._due = None
            raise
        self._again(FIRST_PAUSE if signals else min(2 * self._pause, LONGEST_PAUSE))
        return signals

    def _again(self, pause: float) -> None:
        self._pause = pause
        self._due = time.monotonic() + pause
