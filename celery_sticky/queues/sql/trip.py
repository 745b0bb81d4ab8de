"""One trip to the database: what it asks for, and what it brings. Each dialect has its own way to carry it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from celery_sticky.queues.sql.flights import Group
from celery_sticky.queues.sql.open_slot import OpenSlot
from celery_sticky.queues.sql.ranges import Range, Window
from celery_sticky.sql import Transaction
from celery_sticky.sql.text import Place

BUDGET = 2 * 1024 * 1024
"""Bytes that one trip brings, and then not another message."""
MESSAGE_COST = 1024
"""Bytes charged for a message in addition to its body."""


class Wanted(NamedTuple):
    """At most `limit` messages of one slot."""

    slot: OpenSlot
    limit: int


class Found(NamedTuple):
    """A message that was found, in the order of the queue; without its body it is left for the next trip."""

    turn: int
    """The index in `Trip.wanted`."""
    priority: int
    id: int
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Trip:
    """What a trip asks for: rows to delete, and messages to bring."""

    incarnation: bytes
    record: str
    """The key of the flight record of what it brings."""
    number: int
    """The number in the tags."""
    wanted: Sequence[Wanted]
    slots: Collection[OpenSlot]
    """Every slot with a want or a disposition; only those whose fence is still ours count."""
    places: Sequence[Place]
    """The messages to delete."""
    ended: Sequence[str]
    """The flight records to delete: everything in them has ended."""

    def windows(self, *, settled: bool) -> list[tuple[int, Window]]:
        """Return where messages may have been committed late, with the turn.

        `settled`: the rows to delete are gone already.
        """
        gone: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for queue, priority, number in self.places if settled else ():
            gone[queue].append((priority, number))
        return [
            (turn, window)
            for turn, (slot, _) in enumerate(self.wanted)
            for window in slot.windows(gone.get(slot.queue, ()))
        ]

    @property
    def groups(self) -> list[Group]:
        """The groups of the flight record, one for each want."""
        return [
            Group(slot.queue, slot.opening, slot.next_number, slot.tenure.trip(self.number)) for slot, _ in self.wanted
        ]

    def ranges(self) -> list[tuple[int, Range]]:
        """Return where to look, with the turn."""
        return [(turn, part) for turn, (slot, _) in enumerate(self.wanted) for part in slot.ranges()]


class Haul(NamedTuple):
    """What a trip brings."""

    held: set[int]
    """The queues whose fence is ours."""
    found: list[Found]
    late: set[int]
    """The turns for which a message was committed late: below the cursor, after the cursor had passed it. Nothing is
    brought for them, because the late message comes first."""


class Carrier(Protocol):
    """Carries a trip out."""

    alone: bool
    """It checks the fences itself, so that a trip with nothing else to do needs no transaction around it."""

    def carry(self, trip: Trip, inside: Transaction | None) -> Haul:
        """Carry the trip out, in a transaction if there is one."""
