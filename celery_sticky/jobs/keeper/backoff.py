"""Back-off for slots whose records the store refuses although it answers otherwise: they are retried later."""

from __future__ import annotations

from celery_sticky.keys import Slot

ASIDE_FIRST, ASIDE_LAST = 0.1, 5.0
"""Seconds until a slot is retried: first and maximum; the pause doubles."""


class Backoff:
    """The slots that are set aside. `now` is in seconds on one clock."""

    def __init__(self) -> None:
        self._backoff: dict[Slot, tuple[str, float, float]] = {}
        """Slot -> the verb that failed, the pause, and when it ends."""

    def put(self, slot: Slot, verb: str, now: float) -> float:
        """Set a slot aside after a failure; return the pause in seconds."""
        _, before, _ = self._backoff.get(slot, (verb, 0.0, 0.0))
        pause = min(max(2 * before, ASIDE_FIRST), ASIDE_LAST)
        self._backoff[slot] = verb, pause, now + pause
        return pause

    def worked(self, slot: Slot, verb: str) -> None:
        """Take the slot back if `verb` is what had failed; a failure of another verb still holds."""
        if slot in self._backoff and self._backoff[slot][0] == verb:
            del self._backoff[slot]

    def forget(self, slot: Slot) -> None:
        """Forget a slot that this worker no longer holds in the same way."""
        self._backoff.pop(slot, None)

    def has(self, slot: Slot, now: float) -> bool:
        """True if the slot is set aside now."""
        return slot in self._backoff and now < self._backoff[slot][2]

    def due(self, now: float) -> list[Slot]:
        """Return the slots to retry now."""
        return [slot for slot, (_, _, until) in self._backoff.items() if until <= now]

    def next_at(self, now: float) -> float | None:
        """Return when the next slot is to be retried, or None."""
        return min((until for _, _, until in self._backoff.values() if until > now), default=None)
