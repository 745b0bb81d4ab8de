"""The order in which the courier fetches from slots: round robin, without the slots known to be empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from celery_sticky.keys import SlotId

SLOTS_A_ROUND = 64
LOOKED_INTO = 1024
"""Most slots that are looked into at a time although no message is known to wait there."""


class Rounds:
    """The slots that may hold a message, and when others will hold one."""

    def __init__(self) -> None:
        self._maybe: dict[SlotId, None] = {}
        self._due: dict[SlotId, float] = {}
        self._unseen: Iterator[SlotId] = iter(())
        """The slots that `next_of` has still to return."""

    def note(self, slots: Iterable[SlotId]) -> None:
        """Note that these slots may hold a message."""
        for slot in slots:
            self._maybe[slot] = None

    def next_of(self, slots: Iterable[SlotId]) -> list[SlotId]:
        """Return the next of these slots, at most `LOOKED_INTO`; all come in turn."""
        found = list(islice(self._unseen, LOOKED_INTO))
        if len(found) < LOOKED_INTO:
            self._unseen = iter(list(slots))
        return found

    def drained(self, slots: Iterable[SlotId]) -> None:
        """Note that these slots are empty now."""
        for slot in slots:
            self._maybe.pop(slot, None)

    def served(self, slots: Iterable[SlotId]) -> None:
        """Move slots that brought messages to the end: one with big messages can use up a whole request."""
        for slot in slots:
            if slot in self._maybe:
                self._maybe[slot] = self._maybe.pop(slot)

    def forget(self, slot: SlotId) -> None:
        """Forget a slot that is no longer ours."""
        self._maybe.pop(slot, None)
        self._due.pop(slot, None)

    def note_due(self, slot: SlotId, due: float) -> None:
        """Note when the first deferred message of this slot is due, in seconds since the epoch."""
        self._due[slot] = due

    def note_deferred(self, slot: SlotId, due: float) -> None:
        """Note that a message of this slot was deferred until `due`; others of it may be due earlier."""
        self._due[slot] = min(due, self._due.get(slot, due))

    def come_due(self, now: float) -> None:
        """Mark the slots whose deferred message is due as slots that may hold a message."""
        if not self._due:
            return
        for slot in [slot for slot, due in self._due.items() if due <= now]:
            del self._due[slot]
            self._maybe[slot] = None

    @property
    def next_due(self) -> float | None:
        """When the next deferred message is due, or None."""
        return min(self._due.values(), default=None)

    @property
    def any(self) -> bool:
        """Whether there is a slot to fetch from."""
        return bool(self._maybe)

    def pick(self, most: int, eligible: Callable[[SlotId], bool]) -> list[SlotId]:
        """Return at most `most` eligible slots whose turn it is, and move them to the end of the line."""
        most = min(most, SLOTS_A_ROUND)
        picked: list[SlotId] = []
        for slot in self._maybe:
            if len(picked) >= most:
                break
            if eligible(slot):
                picked.append(slot)
        for slot in picked:
            self._maybe[slot] = self._maybe.pop(slot)
        return picked
