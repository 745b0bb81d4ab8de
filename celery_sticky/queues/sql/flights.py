"""Flight records: one row for each trip that brought messages, written with the fetch. Pure.

Its first line is JSON: the groups, each with queue, opening, number of the first tag, and the name in the tags. The
second line has `group:priority:id` for each message, in order; the server may write it. An entry counts as long as its
message exists and the slot's fence has the same opening, so an opening ends all entries of the former one at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from celery_sticky.queues.base import Tag


class Group(NamedTuple):
    """Deliveries of one slot whose tags have consecutive numbers."""

    queue: int
    opening: int
    first: int
    trip: str


class Entry(NamedTuple):
    """One delivery."""

    queue: int
    opening: int
    tag: Tag
    priority: int
    id: int


class Fetch(NamedTuple):
    """One message of a group (its index), as a line of a record names it."""

    group: int
    priority: int
    id: int


def head(groups: Sequence[Group]) -> str:
    """Return the first line of a record. It is ASCII."""
    return json.dumps(groups, separators=(",", ":")) + "\n"


def record(groups: Sequence[Group], fetches: Iterable[Fetch]) -> bytes:
    """Return a record."""
    return (head(groups) + " ".join(f"{one.group}:{one.priority}:{one.id}" for one in fetches)).encode()


def entries(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a record."""
    first, _, second = data.decode().partition("\n")
    groups = [Group(*group) for group in json.loads(first)]
    numbers: dict[int, int] = defaultdict(int)
    for text in second.split():
        at, priority, message = (int(part) for part in text.split(":"))
        group = groups[at]
        tag = Tag(group.first + numbers[at], group.trip)
        numbers[at] += 1
        yield Entry(group.queue, group.opening, tag, priority, message)
