"""Entries that wait for their task's rate limit: their keys wait with them, and nothing else does.

Pure, but for the buckets: those belong to whoever sets the limits, and know the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from celery_sticky.delivery.gate import Entry


class Bucket(Protocol):
    """The tokens of one kind of task, as Kombu's `TokenBucket` has them."""

    def can_consume(self, tokens: int = 1) -> bool:
        """Take tokens if there are so many."""

    def expected_time(self, tokens: int = 1) -> float:
        """Return in how many seconds there are so many."""


class Limited:
    """What waits for a token, of each kind in the order in which its turn came."""

    def __init__(self) -> None:
        self.buckets: Mapping[str, Bucket] = {}
        """By kind of entry; a kind without one is not limited."""
        self._count = 0
        self._waiting: dict[str, dict[Entry, None]] = {}

    def __len__(self) -> int:
        return self._count

    def hold(self, entry: Entry) -> None:
        """Have an entry wait for a token of its kind."""
        self._waiting.setdefault(entry.kind, {})[entry] = None
        self._count += 1

    def drop(self, entry: Entry) -> None:
        """The entry waits no longer."""
        waiting = self._waiting[entry.kind]
        del waiting[entry]
        if not waiting:
            del self._waiting[entry.kind]
        self._count -= 1

    def take(self) -> Iterator[Entry]:
        """Yield what may go on now: a token is spent for each, where there is a limit."""
        for kind, waiting in list(self._waiting.items()):
            bucket = self.buckets.get(kind)
            for entry in list(waiting):
                if bucket is not None and not bucket.can_consume(1):
                    break
                self.drop(entry)
                yield entry

    def due_in(self) -> float | None:
        """Return in how many seconds the next entry may go on, or None where none waits."""
        buckets = self.buckets
        times = [buckets[kind].expected_time(1) if kind in buckets else 0.0 for kind in self._waiting]
        return min(times, default=None)
