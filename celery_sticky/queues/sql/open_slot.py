"""What a driver remembers of a slot that it has opened. Pure: it sends nothing.

Only its owner reads a slot's queue, so the owner keeps its place in memory: for each priority the highest id that it
has fetched, the cursor. Being in flight changes nothing at a message's row; the row is deleted when it is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Tag, Tenure
from celery_sticky.queues.sql.ranges import Range, Window, above

LATE_SECONDS = 2.0
"""How long a transaction may stay open after it has added a message, without being overtaken by later ones."""


class InFlight(NamedTuple):
    """A delivery that is not settled."""

    priority: int
    id: int
    record: str
    """The key of the flight record that names it."""


@dataclass(slots=True)
class OpenSlot:
    """One slot."""

    tenure: Tenure
    queue: int
    opening: int
    """The number of this opening of the slot: part of the numbers of its tags."""
    flight: dict[Tag, InFlight]
    suspects: dict[int, int]
    """Message id -> starts counted."""
    due: float | None
    """When the next deferred message is due."""
    delivered: int = 0
    """The number of deliveries of this opening."""
    cursors: dict[int, int] = field(default_factory=lambda: {0: 0})
    """Priority -> the highest id fetched. A priority without messages so far has none."""
    ahead: set[tuple[int, int]] = field(default_factory=set)
    """Priority and id of deliveries in flight above the cursor: they were kept by the opening."""
    late: set[tuple[int, int]] = field(default_factory=set)
    """Priority and id of messages below the cursor that were never fetched: they were committed late."""
    floors: dict[int, int] = field(default_factory=dict)
    """Priority -> the cursor of at least `LATE_SECONDS` ago."""
    marked: dict[int, int] = field(default_factory=dict)
    """The next `floors`: the cursors at the time `marked_at`."""
    marked_at: float = 0.0

    def __post_init__(self) -> None:
        for one in self.flight.values():
            self.cursors.setdefault(one.priority, 0)
            self.ahead.add((one.priority, one.id))

    @property
    def id(self) -> SlotId:
        """Keyspace and slot."""
        return self.tenure.keyspace, self.tenure.slot

    @property
    def next_number(self) -> int:
        """The number of the next delivery's tag."""
        return self.opening + self.delivered + 1

    def is_due(self, now: float) -> bool:
        """Return whether a deferred message is due."""
        return self.due is not None and self.due <= now

    def ranges(self) -> list[Range]:
        """Return where unfetched messages may be, in the order of the queue; each priority ends with an open range."""
        found: list[Range] = []
        for priority, after, last, upto in above(self.cursors):
            found += [Range(priority, one - 1, priority, one) for one in self._ids(self.late, priority)]
            for one in self._ids(self.ahead, priority):
                if one - 1 > after:
                    found.append(Range(priority, after, priority, one - 1))
                after = one
            found.append(Range(priority, after, last, upto))
        return found

    def note(self, tag: Tag, fetched: InFlight) -> None:
        """Note a delivery."""
        place = (fetched.priority, fetched.id)
        self.delivered += 1
        self.flight[tag] = fetched
        if place in self.late:
            self.late.discard(place)
            return
        self.cursors[fetched.priority] = fetched.id
        if self.ahead:
            self.ahead = {one for one in self.ahead if one[1] > self.cursors[one[0]]}

    def age(self, now: float) -> None:
        """Raise the floors once they are old enough; `now` is in seconds of a monotonic clock."""
        if now - self.marked_at >= LATE_SECONDS:
            self.floors, self.marked, self.marked_at = self.marked, dict(self.cursors), now

    def windows(self, gone: Collection[tuple[int, int]] = (), *, whole: bool = False) -> list[Window]:
        """Return the parts below the cursors that need a look, or all of them if `whole` is set.

        Messages in `gone` (priority and id) are not counted as known.
        """
        floors = {} if whole else self.floors
        parts = {
            priority: (floors.get(priority, 0), cursor)
            for priority, cursor in self.cursors.items()
            if floors.get(priority, 0) < cursor
        }
        if not parts:
            return []
        known = Counter[int]()
        for priority, number in {(one.priority, one.id) for one in self.flight.values()}.union(self.late) - set(gone):
            floor, cursor = parts.get(priority, (0, 0))
            known[priority] += floor < number <= cursor
        return [Window(self.queue, priority, *part, known[priority]) for priority, part in parts.items()]

    @staticmethod
    def _ids(places: Iterable[tuple[int, int]], priority: int) -> list[int]:
        return sorted(number for of, number in places if of == priority)
