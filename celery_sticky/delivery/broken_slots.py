"""Slots that the broker could not work on: each is retried with growing pauses and logged at most once a minute."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from celery_sticky.keys import SlotId

logger = logging.getLogger("celery_sticky.courier")

FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""Shortest and longest pause between two tries of a broken slot, in seconds."""
REPEAT = 60.0
"""Seconds between two log lines with the same text about one slot."""


@dataclass(slots=True)
class _Trouble:
    text: str
    pause: float
    retry_at: float
    said_at: float


class BrokenSlots:
    """The broken slots and when to retry them. Guarded by the courier's lock. `now` is in seconds since the epoch."""

    def __init__(
        self, meaning: str, *, level: int = logging.ERROR, first: float = FIRST_PAUSE, last: float = LAST_PAUSE
    ) -> None:
        self._meaning, self._level, self._first, self._last = meaning, level, first, last
        self._troubles: dict[SlotId, _Trouble] = {}

    @property
    def any(self) -> bool:
        """Whether a slot is broken."""
        return bool(self._troubles)

    def note(self, slot: SlotId, text: str, now: float) -> float:
        """Record a slot that could not be worked on; return when to try again."""
        trouble = self._troubles.get(slot)
        if trouble is None:
            trouble = self._troubles[slot] = _Trouble("", self._first, now, now - REPEAT)
        elif now >= trouble.retry_at:
            trouble.pause = min(2 * trouble.pause, self._last)
        trouble.retry_at = max(trouble.retry_at, now + trouble.pause)
        if trouble.text != text or now >= trouble.said_at + REPEAT:
            trouble.text, trouble.said_at = text, now
            logger.log(
                self._level,
                "slot %s of keyspace %s: %s. %s; the other slots continue. This slot is retried at least every %g s",
                slot[1],
                slot[0],
                text,
                self._meaning,
                self._last,
            )
        return trouble.retry_at

    def mended(self, slots: Iterable[SlotId]) -> None:
        """Record slots that work again."""
        if not self._troubles:
            return
        for slot in slots:
            if self._troubles.pop(slot, None) is not None:
                logger.info("slot %s of keyspace %s works again", slot[1], slot[0])

    def forget(self, slot: SlotId) -> None:
        """Forget a slot that is no longer ours."""
        self._troubles.pop(slot, None)
