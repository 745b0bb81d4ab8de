"""Slots whose records the store refuses, while it answers otherwise: they are left aside, and tried again later."""

from __future__ import annotations

from celery_sticky.keys import Slot

ASIDE_FIRST, ASIDE_LAST = 0.1, 5.0
"""Seconds until a slot is tried again: the first time, and at most; doubled in between."""


class Backoff:
    """What is left aside. `now` is in seconds on one clock."""

    def __init__(self) -> None:
        self._backoff: dict[Slot, tuple[str, float, float]] = {}
        """Slot -> what has failed, the pause, and when it is over."""

    def put(self, slot: Slot, verb: str, now: float) -> float:
        """The slot has failed: leave it aside; return for how long."""
        _, before, _ = self._backoff.get(slot, (verb, 0.0, 0.0))
        pause = min(max(2 * before, ASIDE_FIRST), ASIDE_LAST)
        self._backoff[slot] = verb, pause, now + pause
        return pause

    def worked(self, slot: Slot, verb: str) -> None:
        """This has not failed in the slot. If something else had, that still holds."""
        if slot in self._backoff and self._backoff[slot][0] == verb:
            del self._backoff[slot]

    def forget(self, slot: Slot) -> None:
        """The slot is another one's, or another time's."""
        self._backoff.pop(slot, None)

    def has(self, slot: Slot, now: float) -> bool:
        """Whether the slot is to be left aside now."""
        return slot in self._backoff and now < self._backoff[slot][2]

    def due(self, now: float) -> list[Slot]:
        """Return those that are to be tried again now."""
        return [slot for slot, (_, _, until) in self._backoff.items() if until <= now]

    def next_at(self, now: float) -> float | None:
        """Return when the next one is to be tried, or None."""
        return min((until for _, _, until in self._backoff.values() if until > now), default=None)
