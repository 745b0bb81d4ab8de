"""Back-off for slots whose records the store refuses although it answers otherwise: they are retried later."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_sticky.slots import Slot
from celery_sticky.stores.flow import Flow, ask
from celery_sticky.stores.jobs import JobStore

logger = logging.getLogger("celery_sticky.jobs")

ASIDE_FIRST, ASIDE_LAST = 0.1, 5.0
"""Seconds until a slot is retried: first and maximum; the pause doubles."""


class Backoff:
    """The slots of one keyspace that are set aside. `clock` returns seconds."""

    def __init__(self, keyspace: str, clock: Callable[[], float]) -> None:
        self._keyspace, self._clock = keyspace, clock
        self._backoff: dict[Slot, tuple[str, float, float]] = {}
        """Slot -> the verb that failed, the pause, and when it ends."""

    def attempt(self, slot: Slot, verb: str, work: Flow[JobStore, None]) -> Flow[JobStore, bool]:
        """Do `work` for one slot; False: the slot is set aside. A refusal for one slot must not block the others."""
        if self.has(slot):
            return False
        try:
            yield from work
        except Exception as error:
            yield from ask(JobStore.look, {})  # raises if the store as a whole is down
            again = self._put(slot, verb)
            what = f"slot {slot} at {(yield from ask(JobStore.where, slot))}: {verb}"
            logger.error(
                "jobs of keyspace %s: %s has failed: %s; trying again in %g s", self._keyspace, what, error, again
            )
            return False
        self.worked(slot, verb)
        return True

    def worked(self, slot: Slot, verb: str) -> None:
        """Take the slot back if `verb` is what had failed; a failure of another verb still holds."""
        if slot in self._backoff and self._backoff[slot][0] == verb:
            del self._backoff[slot]

    def forget(self, slot: Slot) -> None:
        """Forget a slot that this worker no longer holds in the same way."""
        self._backoff.pop(slot, None)

    def has(self, slot: Slot) -> bool:
        """True if the slot is set aside now."""
        return slot in self._backoff and self._clock() < self._backoff[slot][2]

    def due(self) -> list[Slot]:
        """Return the slots to retry now."""
        now = self._clock()
        return [slot for slot, (_, _, until) in self._backoff.items() if until <= now]

    def next_at(self) -> float | None:
        """Return when the next slot is to be retried, or None."""
        now = self._clock()
        return min((until for _, _, until in self._backoff.values() if until > now), default=None)

    def _put(self, slot: Slot, verb: str) -> float:
        """Set a slot aside after a failure; return the pause in seconds."""
        _, before, _ = self._backoff.get(slot, (verb, 0.0, 0.0))
        pause = min(max(2 * before, ASIDE_FIRST), ASIDE_LAST)
        self._backoff[slot] = verb, pause, self._clock() + pause
        return pause
