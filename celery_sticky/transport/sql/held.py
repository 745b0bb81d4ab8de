"""What a connection holds: the messages that it has claimed and not settled, and how many more there is room for."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from celery_sticky.sql.text import Place

COMPANY = 64
"""Settled messages that are worth a trip at once; fewer wait for others for a moment."""
MOMENT = 0.005
"""Seconds that a settled message waits for others."""
NO_LIMIT = 1 << 30


class Held(NamedTuple):
    """A message that is claimed."""

    place: Place
    channel: int
    """The id of the channel that got it."""


class Settled(NamedTuple):
    """A message that a channel is done with."""

    tag: str
    back: bool
    """It goes back to its queue."""


class Ledger:
    """The pump's thread uses it; `settled` and `released` may be filled by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.settled: deque[Settled] = deque()
        self.released: deque[int] = deque()
        """Ids of channels that give back everything."""
        self.acked: set[Place] = set()
        self.returned: set[Place] = set()
        """The messages of which the next trip tells the database."""
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._counts: Counter[int] = Counter()
        self._since = 0.0
        self._number = 0

    def add(self, place: Place, channel: int) -> str:
        """Note a message that was claimed for a channel; return its tag."""
        self._number += 1
        tag = f"sticky-{self._number}"
        self._held[tag] = Held(place, channel)
        self._counts[channel] += 1
        return tag

    def take(self) -> None:
        """Take in what channels have settled."""
        while self.settled:
            one = self.settled.popleft()
            if (held := self._held.pop(one.tag, None)) is not None:
                self._end(held, back=one.back)
        while self.released:
            channel = self.released.popleft()
            for tag in [tag for tag, held in self._held.items() if held.channel == channel]:
                self._end(self._held.pop(tag), back=True)

    def ack(self, place: Place) -> None:
        """Note that a message was handed over and needs no acknowledgement."""
        self._note(self.acked, place)

    def forget(self) -> int:
        """Forget everything, after the consumer was evicted; return how many messages it held."""
        lost = len(self._held)
        self._held.clear()
        self._counts.clear()
        self.acked.clear()
        self.returned.clear()
        return lost

    def rooms(self, limits: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Return how many more messages each channel may get; `limits` are ids of channels and their limits."""
        return {channel: max(limit - self._counts[channel], 0) if limit else NO_LIMIT for channel, limit in limits}

    def wait(self, company: int) -> float | None:
        """Return for how many seconds the next trip can wait for `company` in all; None: nothing is settled."""
        count = len(self.acked) + len(self.returned)
        if not count:
            return None
        return 0.0 if count >= min(company, COMPANY) else max(self._since + MOMENT - self._clock(), 0.0)

    def told(self, acked: Iterable[Place], returned: Iterable[Place]) -> None:
        """Forget what the database knows now."""
        self.acked.difference_update(acked)
        self.returned.difference_update(returned)

    def _end(self, held: Held, *, back: bool) -> None:
        self._counts[held.channel] -= 1
        self._note(self.returned if back else self.acked, held.place)

    def _note(self, where: set[Place], place: Place) -> None:
        if not self.acked and not self.returned:
            self._since = self._clock()
        where.add(place)
