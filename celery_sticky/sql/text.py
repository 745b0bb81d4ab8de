"""Pieces of statements that all dialects understand, each with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

CHUNK = 250
"""Most rows in one statement: SQLite takes at most 500 parts of a compound, and no server needs more at once."""
REQUEST_BYTES = 1024 * 1024
"""Most bytes of bodies in one statement, but for a single body."""

Item = TypeVar("Item")
Place = tuple[int, int, int]
"""The primary key of a message: queue, priority, id."""
Piece = tuple[str, list[Any]]
"""Part of a statement, and the parameters in it."""


def chunks(items: Sequence[Item], size: int = CHUNK) -> Iterator[Sequence[Item]]:
    """Yield the items in sequences of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def portions(items: Sequence[Item], size_of: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """Yield the items in portions for one statement each: few enough items, and few enough bytes of bodies."""
    start, size = 0, 0
    for number, item in enumerate(items):
        size += size_of(item)
        if number > start and (size > REQUEST_BYTES or number - start >= CHUNK):
            yield items[start:number]
            start, size = number, size_of(item)
    if start < len(items):
        yield items[start:]


def as_bytes(value: Any) -> bytes:
    """Return a value of a column of bytes: SQLite stores whatever type somebody else has written there."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()


def marks(count: int) -> str:
    """Return `count` placeholders in parentheses."""
    return f"({', '.join(['%s'] * count)})"


def values(rows: Sequence[Sequence[Any]]) -> Piece:
    """Return the rows of an `INSERT … VALUES`."""
    return ", ".join([marks(len(rows[0]))] * len(rows)), [value for row in rows for value in row]


def at_places(places: Iterable[Place], table: str) -> Piece:
    """Return a condition for rows of a table: those of these messages.

    Each queue and priority is one range of the primary key.
    """
    parts: list[str] = []
    said: list[Any] = []
    for (queue, priority), group in groupby(sorted(places), key=lambda place: place[:2]):
        ids = [place[2] for place in group]
        parts.append(f"({table}.queue = %s AND {table}.priority = %s AND {table}.id IN {marks(len(ids))})")
        said += (queue, priority, *ids)
    return " OR ".join(parts), said
