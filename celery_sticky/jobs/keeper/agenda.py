"""The slots of a job reconciler that have work, now or at some time. There may be very many others.

So slots with work are recorded here instead of searched for. `now` is in seconds on one clock. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from celery_sticky.slots import Slot


class Agenda:
    """The slots to reconcile."""

    def __init__(self) -> None:
        self._due: dict[Slot, None] = {}
        """In order of arrival."""
        self._timers: list[tuple[float, int, Slot]] = []
        self._timed = count()

    def add(self, slot: Slot) -> None:
        """Reconcile a slot next time."""
        self._due[slot] = None

    def update(self, slots: Iterable[Slot]) -> None:
        """Reconcile these slots next time."""
        self._due.update(dict.fromkeys(slots))

    def add_at(self, at: float, slot: Slot) -> None:
        """Reconcile a slot at this time."""
        heappush(self._timers, (at, next(self._timed), slot))

    def take(self, now: float) -> list[Slot]:
        """Return, once, the slots that are due, in order of arrival."""
        while self._timers and self._timers[0][0] <= now:
            self.add(heappop(self._timers)[2])
        due, self._due = self._due, {}
        return list(due)

    @property
    def next_at(self) -> float:
        """When a slot will be due by its time; infinity if none will."""
        return self._timers[0][0] if self._timers else float("inf")
