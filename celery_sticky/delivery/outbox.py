"""Verdicts on their way to the broker: they wait for company, go together, and stay ours until they are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from celery_sticky.delivery.gate import Entry
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Outcome, Tag

LINGER = 0.005
"""Seconds a verdict waits for company while nobody waits for it."""
COMPANY = 16
"""Verdicts that do not wait any longer."""


class Outbox:
    """Verdicts not yet confirmed, with the entries they are about. Guarded by the courier's lock."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Entry, Disposition]] = deque()
        self._sent: dict[tuple[SlotId, Tag, Outcome], tuple[Entry, Disposition]] = {}
        """By act too: a message may be passed on before its mark has gone, and both then go together."""
        self._unanswered: set[Entry] = set()
        self._since = 0.0
        self._postponed: list[tuple[float, Entry, Disposition]] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent) + len(self._postponed)

    def put(self, entry: Entry, disposition: Disposition, now: float) -> bool:
        """Take a verdict in; True if it is the first to wait."""
        self._waiting.append((entry, disposition))
        if len(self._waiting) == 1:
            self._since = now
            return True
        return False

    @property
    def full(self) -> bool:
        """Whether there is company enough to go."""
        return len(self._waiting) >= COMPANY

    @property
    def goes_at(self) -> float | None:
        """When the verdicts that wait go at the latest, or None when there are none."""
        first = self._since + LINGER if self._waiting else None
        if not self._postponed:
            return first
        postponed = min(at for at, _, _ in self._postponed)
        return postponed if first is None else min(first, postponed)

    def come_due(self, now: float) -> None:
        """Have postponed verdicts go again whose time has come."""
        if not self._postponed:
            return
        due = [one for one in self._postponed if one[0] <= now]
        if due:
            self._postponed = [one for one in self._postponed if one[0] > now]
            self._waiting.extendleft((entry, disposition) for _, entry, disposition in reversed(due))
            self._since = min(self._since, now) if len(self._waiting) > len(due) else now - LINGER

    def postpone(self, disposition: Disposition, until: float) -> None:
        """The broker could not carry this verdict out: it goes again then (seconds since the epoch)."""
        entry, unanswered = self.answered(disposition)
        if unanswered:
            self._unanswered.add(entry)
        self._postponed.append((until, entry, disposition))

    def take(self, stamp: Callable[[Entry, Disposition], Disposition]) -> list[Disposition]:
        """Return everything that waits, each made out by `stamp` to the tenure the slot has now."""
        taken = []
        while self._waiting:
            entry, disposition = self._waiting.popleft()
            stamped = stamp(entry, disposition)
            self._sent[entry.slot, entry.tag, disposition.outcome] = (entry, stamped)
            taken.append(stamped)
        return taken

    def about(self, disposition: Disposition) -> Entry:
        """Return the entry that a verdict on its way is about."""
        return self._sent[_name(disposition)][0]

    def answered(self, disposition: Disposition) -> tuple[Entry, bool]:
        """The broker has answered: return the entry, and whether an earlier request of it was never answered."""
        entry = self._sent.pop(_name(disposition))[0]
        unanswered = entry in self._unanswered
        self._unanswered.discard(entry)
        return entry, unanswered

    def back(self, now: float) -> None:
        """The answer was lost: whatever was sent goes again, before the rest; what was postponed goes too."""
        self._unanswered.update(entry for entry, _ in self._sent.values())
        again = [*self._sent.values(), *((entry, disposition) for _, entry, disposition in self._postponed)]
        self._waiting.extendleft(reversed(again))
        self._sent.clear()
        self._postponed.clear()
        self._since = now


def _name(disposition: Disposition) -> tuple[SlotId, Tag, Outcome]:
    return (disposition.tenure.keyspace, disposition.tenure.slot), disposition.tag, disposition.outcome
