"""When members and pins of a placed keyspace have changed, and where its keys belonged. Pure.

Nobody sees the moment of a change, only that it lies between two looks. So a question about a time is answered with
everything that may have been then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Generic, TypeVar

from celery_sticky.errors import StickyError
from celery_sticky.keys import WORKER_QUEUE
from celery_sticky.keyspace import Keyspace, placement_of, workers_of
from celery_sticky.ownership.view import View

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Change(Generic[Value]):
    """From when on something is so. Times are CLOCK_MONOTONIC nanoseconds."""

    since: int
    """When it was not so yet."""
    until: int
    """When it was seen to be so."""
    value: Value


@dataclass(slots=True)
class Moves:
    """What was seen of a keyspace in the course of a run."""

    keyspace: Keyspace
    views: list[Change[View]] = field(default_factory=list)
    pins: dict[str, list[Change[str]]] = field(default_factory=dict)
    """Key -> who has pinned it, by incarnation; empty: nobody. A key that is never pinned need not be there."""

    def of(self, key: str, since: int, until: int) -> list[tuple[int, int]]:
        """Return the changes of members, or of the key's pin, that may have come then: each by `since` and `until`."""
        members = (new for old, new in pairwise(self.views) if _members(old.value) != _members(new.value))
        changes = (*members, *self.pins.get(key, ())[1:])
        return [(one.since, one.until) for one in changes if one.since <= until and since <= one.until]

    def pinned(self, key: str, since: int, until: int) -> int | None:
        """Return when the key was pinned for the last time in that time; None: it was not."""
        pins = (one for one in self.pins.get(key, ())[1:] if one.value)
        return max((one.until for one in pins if one.since <= until and since <= one.until), default=None)

    def workers(self, key: str, since: int, until: int) -> set[str | None]:
        """Return the workers to which the key may have belonged then, by node name; None: to none."""
        views = _in_force(self.views, since, until)
        pins = _in_force(self.pins.get(key, ()), since, until) or [""]
        return {self._worker(key, view, pin) for view, pin in product(views, pins)}

    def _worker(self, key: str, view: View, pin: str) -> str | None:
        try:
            place = placement_of(self.keyspace, key, view.slots, view, workers_of(view), pin or None)
        except StickyError:
            return None
        return view.owner[place] if isinstance(place, int) else place.removeprefix(WORKER_QUEUE)


def _in_force(changes: Sequence[Change[Value]], since: int, until: int) -> list[Value]:
    ends: Iterable[int | None] = (*(change.until for change in changes[1:]), None)
    spells = zip(changes, ends, strict=True) if changes else ()
    return [one.value for one, end in spells if one.since <= until and (end is None or since <= end)]


def _members(view: View) -> set[tuple[str, str, str]]:
    return {(member.name, member.incarnation, member.state) for member in view.members.values()}
