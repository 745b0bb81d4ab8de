"""Messages that wait for another try in their place: later messages of their key wait too, all others continue.

Neither the task nor its message failed, so no attempt is counted: an outage of any length buries nothing.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator

from celery_sticky.delivery.gate import Entry

logger = logging.getLogger("celery_sticky")

FIRST, LAST = 0.25, 30.0
"""Shortest and longest wait before another try, in seconds; each wait is twice the one before."""


def pause(times: int) -> float:
    """Return the seconds to wait after this many failures in a row."""
    return min(LAST, FIRST * 2.0 ** min(times - 1, 16)) if times > 0 else 0.0


class Backoff:
    """The next turn of each resting entry. `now` is in seconds since the epoch."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = 0

    def note_failure(self, entry: Entry, cause: str, now: float) -> None:
        """Schedule another try: the infrastructure failed before the task could start."""
        entry.failures += 1
        wait = self._add(entry, pause(entry.failures), now)
        logger.warning("%s could not be started: %s; it keeps its place, next try in %.1f s", _name(entry), cause, wait)

    def note_requeue(self, entry: Entry, cause: str, now: float) -> None:
        """Schedule another start: the task gave its message back. The first time there is no wait."""
        entry.requeues += 1
        wait = self._add(entry, pause(entry.requeues - 1), now)
        logger.info("%s asked to be requeued: %s; it keeps its place, next start in %.1f s", _name(entry), cause, wait)

    def wait(self, entry: Entry, seconds: float, now: float) -> None:
        """Give an entry its next turn in this many seconds."""
        self._add(entry, min(seconds, LAST), now)

    def _add(self, entry: Entry, wait: float, now: float) -> float:
        self._count += 1
        heapq.heappush(self._heap, (now + wait, self._count, entry))
        return wait

    @property
    def next_due(self) -> float | None:
        """When the next entry has its turn, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Entry]:
        """Yield the entries whose turn has come, even if the clock was set back since."""
        while self._heap and not now < self._heap[0][0] <= now + LAST:
            yield heapq.heappop(self._heap)[2]


def _name(entry: Entry) -> str:
    envelope = entry.content.envelope
    return (
        f"task {envelope.task!r:.100} [{envelope.task_id!r:.100}] of slot {entry.slot[1]} in keyspace {entry.slot[0]!r}"
    )
