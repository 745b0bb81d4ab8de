"""Entries that wait for their task's rate limit. Only their keys wait with them.

Pure, except for the buckets: they belong to the code that sets the limits, and they read the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from celery_sticky.delivery.gate import Entry


class Bucket(Protocol):
    """The tokens of one kind of task, as in Kombu's `TokenBucket`."""

    def can_consume(self, tokens: int = 1) -> bool:
        """Take this many tokens, if available."""

    def expected_time(self, tokens: int = 1) -> float:
        """Return the seconds until this many tokens are available."""


class Limited:
    """The entries that wait for a token, per kind in the order of their turn."""

    def __init__(self) -> None:
        self.buckets: Mapping[str, Bucket] = {}
        """By kind of entry; a kind without a bucket is not limited."""
        self._count = 0
        self._waiting: dict[str, dict[Entry, None]] = {}

    def __len__(self) -> int:
        return self._count

    def hold(self, entry: Entry) -> None:
        """Let an entry wait for a token of its kind."""
        self._waiting.setdefault(entry.kind, {})[entry] = None
        self._count += 1

    def drop(self, entry: Entry) -> None:
        """Remove an entry that no longer waits."""
        waiting = self._waiting[entry.kind]
        del waiting[entry]
        if not waiting:
            del self._waiting[entry.kind]
        self._count -= 1

    def take(self) -> Iterator[Entry]:
        """Yield the entries that may continue now; each spends a token of its kind's limit, if there is one."""
        for kind, waiting in list(self._waiting.items()):
            bucket = self.buckets.get(kind)
            for entry in list(waiting):
                if bucket is not None and not bucket.can_consume(1):
                    break
                self.drop(entry)
                yield entry

    def due_in(self) -> float | None:
        """Return the seconds until the next entry may continue, or None if none waits."""
        buckets = self.buckets
        times = [buckets[kind].expected_time(1) if kind in buckets else 0.0 for kind in self._waiting]
        return min(times, default=None)
