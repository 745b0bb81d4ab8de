"""Dispositions on their way to the broker: they are batched, and kept until the broker has answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from celery_sticky.delivery.gate import Entry
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Outcome, Tag

LINGER = 0.005
"""Longest time in seconds that a disposition waits for others while nothing depends on it."""


class Outbox:
    """Unconfirmed dispositions and their entries. Guarded by the courier's lock."""

    def __init__(self, company: int) -> None:
        self._company = company
        """The number of waiting dispositions that are sent at once."""
        self._waiting: deque[tuple[Entry, Disposition]] = deque()
        self._sent: dict[tuple[SlotId, Tag, Outcome], tuple[Entry, Disposition]] = {}
        """Keyed by act too: a message may be passed on before its start has been counted; both then go together."""
        self._unanswered: set[Entry] = set()
        self._since = 0.0
        self._postponed: list[tuple[float, Entry, Disposition]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent) + len(self._postponed)

    def put(self, entry: Entry, disposition: Disposition, now: float) -> bool:
        """Add a disposition; True if it is the only one that waits."""
        self._waiting.append((entry, disposition))
        if len(self._waiting) == 1:
            self._since = now
            return True
        return False

    @property
    def full(self) -> bool:
        """Whether enough dispositions wait to send them now."""
        return len(self._waiting) >= self._company

    @property
    def unanswered(self) -> bool:
        """Whether the broker has not answered dispositions that were sent: it may do so with a later fetch."""
        return bool(self._sent)

    @property
    def goes_at(self) -> float | None:
        """The latest time at which waiting dispositions are sent, or None if there are none."""
        first = self._since + LINGER if self._waiting else None
        if not self._postponed:
            return first
        postponed = min(at for at, _, _ in self._postponed)
        return postponed if first is None else min(first, postponed)

    def come_due(self, now: float) -> None:
        """Queue the postponed dispositions whose time has come."""
        if not self._postponed:
            return
        due = [one for one in self._postponed if one[0] <= now]
        if due:
            self._postponed = [one for one in self._postponed if one[0] > now]
            self._waiting.extendleft((entry, disposition) for _, entry, disposition in reversed(due))
            self._since = min(self._since, now) if len(self._waiting) > len(due) else now - LINGER

    def postpone(self, disposition: Disposition, until: float) -> None:
        """Postpone a disposition that the broker could not apply until this time, in seconds since the epoch."""
        entry, unanswered = self.answered(disposition)
        if unanswered:
            self._unanswered.add(entry)
        self._postponed.append((until, entry, disposition))

    def take(self, stamp: Callable[[Entry, Disposition], Disposition]) -> list[Disposition]:
        """Return all waiting dispositions; `stamp` sets the slot's current tenure on each."""
        taken = []
        while self._waiting:
            entry, disposition = self._waiting.popleft()
            stamped = stamp(entry, disposition)
            self._sent[entry.slot, entry.tag, disposition.outcome] = (entry, stamped)
            taken.append(stamped)
        return taken

    def about(self, disposition: Disposition) -> Entry:
        """Return the entry of a disposition that was sent."""
        return self._sent[_name(disposition)][0]

    def answered(self, disposition: Disposition) -> tuple[Entry, bool]:
        """Record an answer; return the entry, and whether an earlier request about it was never answered."""
        entry = self._sent.pop(_name(disposition))[0]
        unanswered = entry in self._unanswered
        self._unanswered.discard(entry)
        return entry, unanswered

    def back(self, now: float) -> None:
        """Queue sent dispositions again, before the others, because their answer was lost; postponed ones too."""
        self._unanswered.update(entry for entry, _ in self._sent.values())
        again = [*self._sent.values(), *((entry, disposition) for _, entry, disposition in self._postponed)]
        self._waiting.extendleft(reversed(again))
        self._sent.clear()
        self._postponed.clear()
        self._since = now


def _name(disposition: Disposition) -> tuple[SlotId, Tag, Outcome]:
    return (disposition.tenure.keyspace, disposition.tenure.slot), disposition.tag, disposition.outcome
