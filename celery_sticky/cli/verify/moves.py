"""The changes of members and pins in a placed keyspace, and the placement of its keys over time. This module is pure.

The exact moment of a change is unknown; it only lies between two observations. So the answer for a point in time
contains everything that may have been true then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Generic, TypeVar

from celery_sticky.errors import StickyError
from celery_sticky.keyspace import Keyspace, placement_of, workers_of
from celery_sticky.ownership.view import View
from celery_sticky.slots import WorkerQueue

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Change(Generic[Value]):
    """A new value, and the interval in which it changed. Times are CLOCK_MONOTONIC nanoseconds."""

    since: int
    """The last time at which the value was still the old one."""
    until: int
    """The time at which the new value was observed."""
    value: Value


@dataclass(slots=True)
class Moves:
    """The observed changes of a keyspace during a run."""

    keyspace: Keyspace
    views: list[Change[View]] = field(default_factory=list)
    pins: dict[str, list[Change[str]]] = field(default_factory=dict)
    """Key -> changes of the incarnation that has pinned it (empty: none). A key that is never pinned may be absent."""

    def of(self, key: str, since: int, until: int) -> list[tuple[int, int]]:
        """Return `since` and `until` of each change of members or of the key's pin that may lie in that period."""
        members = (new for old, new in pairwise(self.views) if _members(old.value) != _members(new.value))
        changes = (*members, *self.pins.get(key, ())[1:])
        return [(one.since, one.until) for one in changes if one.since <= until and since <= one.until]

    def pinned(self, key: str, since: int, until: int) -> int | None:
        """Return when the key was last pinned in that period, or None if it was not."""
        pins = (one for one in self.pins.get(key, ())[1:] if one.value)
        return max((one.until for one in pins if one.since <= until and since <= one.until), default=None)

    def workers(self, key: str, since: int, until: int) -> set[str | None]:
        """Return the node names of the workers to which the key may have belonged then; None stands for no worker."""
        views = _in_force(self.views, since, until)
        pins = _in_force(self.pins.get(key, ()), since, until) or [""]
        return {self._worker(key, view, pin) for view, pin in product(views, pins)}

    def _worker(self, key: str, view: View, pin: str) -> str | None:
        try:
            place = placement_of(self.keyspace, key, view.slots, view, workers_of(view), pin or None)
        except StickyError:
            return None
        return place.worker if isinstance(place, WorkerQueue) else view.owner[place]


def _in_force(changes: Sequence[Change[Value]], since: int, until: int) -> list[Value]:
    ends: Iterable[int | None] = (*(change.until for change in changes[1:]), None)
    spells = zip(changes, ends, strict=True) if changes else ()
    return [one.value for one, end in spells if one.since <= until and (end is None or since <= end)]


def _members(view: View) -> set[tuple[str, str, str]]:
    return {(member.name, member.incarnation, member.state) for member in view.members.values()}
