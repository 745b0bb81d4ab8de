"""Where a consumer looks for unclaimed messages: above a floor, and from the front of the queue from time to time.

Acknowledged messages leave dead rows at the front of a queue. While some transaction holds a snapshot, the database
keeps them, and every look from the front reads them all. So a consumer remembers how far it has claimed. Messages that
appear below its floor are those that were committed late, or that another consumer has given back: looks from the front
find them. Such a look takes longer the more dead rows there are, so they take at most a fiftieth of the time.
Pure: it sends nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from celery_sticky.queues.sql.ranges import LAST_ID, LAST_PRIORITY, Range, above
from celery_sticky.sql.text import Place

SHARE = 50
"""Looks from the front take at most one part in this many of the time."""
PAUSE = 0.05
"""Least seconds between two looks from the front."""
FRONT = Range(0, 0, LAST_PRIORITY, LAST_ID)
"""A whole queue."""


class Floors:
    """The floors of one consumer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cursors: dict[int, dict[int, int]] = defaultdict(lambda: {0: 0})
        """Queue -> priority -> the highest id that was found."""
        self._behind: set[int] = set()
        """Queues that may have messages below their floor."""
        self.next_front = 0.0
        """When the next look from the front is due."""

    def turn(self) -> float | None:
        """Return the time, in seconds of the clock, if it is time to look from the front, else None."""
        now = self._clock()
        return now if now >= self.next_front else None

    def looked(self, began: float) -> None:
        """Note that a look from the front has ended, which began at that time."""
        now = self._clock()
        self.next_front = now + max(PAUSE, SHARE * (now - began))

    def ranges(self, queue: int) -> list[Range]:
        """Return where to look in a queue, in order."""
        return [FRONT] if queue in self._behind else list(above(self._cursors[queue]))

    def fall_behind(self, queues: Iterable[int]) -> None:
        """Note that these queues may have messages below their floor."""
        self._behind.update(queues)

    def caught_up(self, queues: Iterable[int]) -> None:
        """Note that a look at the ranges of these queues has found nothing."""
        self._behind.difference_update(queues)

    def give_back(self, places: Iterable[Place]) -> None:
        """Note messages that go back to their place in the queue."""
        for queue, priority, number in places:
            cursors = self._cursors[queue]
            cursors[priority] = min(cursors.get(priority, 0), number - 1)

    def found(self, queue: int, places: Sequence[Place], limit: int) -> None:
        """Note what a look at the ranges of a queue has found, which were at most `limit` messages, in order."""
        cursors = self._cursors[queue]
        below = len(places) >= limit and places[-1][2] < cursors.get(places[-1][1], 0)
        if not below:
            self._behind.discard(queue)
        for _, priority, number in places:
            cursors[priority] = max(cursors.get(priority, 0), number)

    def forget(self) -> None:
        """Forget all floors: the database may have come back with an older copy, in which ids begin lower."""
        self._cursors.clear()
        self._behind.clear()
