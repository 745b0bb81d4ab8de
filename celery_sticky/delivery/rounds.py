"""Where the courier looks for messages next: never in slots known to be empty, and in turn in the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery_sticky.keys import SlotId

SLOTS_A_ROUND = 64


class Rounds:
    """The slots that may hold a message, and when others come to hold one."""

    def __init__(self) -> None:
        self._maybe: dict[SlotId, None] = {}
        self._due: dict[SlotId, float] = {}

    def note(self, slots: Iterable[SlotId]) -> None:
        """These slots may hold a message."""
        for slot in slots:
            self._maybe[slot] = None

    def drained(self, slots: Iterable[SlotId]) -> None:
        """These slots are empty now."""
        for slot in slots:
            self._maybe.pop(slot, None)

    def served(self, slots: Iterable[SlotId]) -> None:
        """These slots have brought messages: others come first. One with big messages can use up a whole request."""
        for slot in slots:
            if slot in self._maybe:
                self._maybe[slot] = self._maybe.pop(slot)

    def forget(self, slot: SlotId) -> None:
        """This slot is none of ours any more."""
        self._maybe.pop(slot, None)
        self._due.pop(slot, None)

    def note_due(self, slot: SlotId, due: float) -> None:
        """The first deferred message of this slot comes due then (seconds since the epoch)."""
        self._due[slot] = due

    def note_deferred(self, slot: SlotId, due: float) -> None:
        """A message of this slot was deferred until then; others of it may come due before."""
        self._due[slot] = min(due, self._due.get(slot, due))

    def come_due(self, now: float) -> None:
        """Note the slots whose deferred message is due."""
        if not self._due:
            return
        for slot in [slot for slot, due in self._due.items() if due <= now]:
            del self._due[slot]
            self._maybe[slot] = None

    @property
    def next_due(self) -> float | None:
        """When the next deferred message comes due, or None."""
        return min(self._due.values(), default=None)

    @property
    def any(self) -> bool:
        """Whether there is a slot to look into."""
        return bool(self._maybe)

    def pick(self, most: int, eligible: Callable[[SlotId], bool]) -> list[SlotId]:
        """Return the eligible slots whose turn it is, at most `most`, and move them to the end of the row."""
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
