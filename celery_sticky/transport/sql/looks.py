"""When the pump looks into the database, and for what. Pure: it reads no clock and sends nothing.

While the ear is proven, a look follows what was heard; the others are for rings that were lost. Otherwise the pauses
between two looks grow while they find nothing.
"""

from __future__ import annotations

from celery_sticky.sql.bell import BROADCAST, DUE
from celery_sticky.sql.ear import Heard
from celery_sticky.sql.pauses import FIRST_PAUSE, LONG_PAUSE, SAFETY_PAUSE, longer

DUE_FIRST, DUE_LONGEST = 0.05, 1.0
"""Seconds until the next look at ETAs, while nothing is heard: the least and the most."""


class Looks:
    """Times are in seconds of one clock that does not go back."""

    def __init__(self) -> None:
        self.messages_at = self.broadcasts_at = self.etas_at = 0.0
        """When to look for messages that nobody has claimed, for broadcasts, and for messages whose ETA has come."""
        self._pause, self._proven = FIRST_PAUSE, False

    @property
    def next_at(self) -> float:
        """When to look next."""
        return min(self.messages_at, self.broadcasts_at, self.etas_at)

    def take_in(self, heard: Heard, *, proven: bool) -> None:
        """Look at once for what was heard by an ear, which is `proven` now or not."""
        self._proven = proven
        kinds = {topic[0] for topic in heard.topics}
        if heard.everything or BROADCAST in kinds:
            self.broadcasts_at = 0.0
        if heard.everything or DUE in kinds:
            self.etas_at = 0.0
        if heard.everything or kinds - {BROADCAST, DUE}:
            self.messages_at = 0.0
        if heard.everything:
            self._pause = FIRST_PAUSE

    def brought(self) -> None:
        """Note that a trip has brought messages."""
        self._pause = FIRST_PAUSE

    def looked(self, now: float, *, found: bool) -> None:
        """Note that everything due at `now` was looked at, but for ETAs, and whether anything was found."""
        self._pause = FIRST_PAUSE if found else longer(self._pause)
        if now >= self.messages_at:
            self.messages_at = now + (SAFETY_PAUSE if self._proven else self._pause)
        if now >= self.broadcasts_at:
            self.broadcasts_at = now + (LONG_PAUSE if self._proven else self._pause)

    def looked_at_etas(self, now: float, due_in: float) -> None:
        """Note that the next message of all queues is due in so many seconds."""
        self.etas_at = now + max(min(due_in, LONG_PAUSE if self._proven else DUE_LONGEST), DUE_FIRST)
