"""Watches the heartbeats of other members: how long each counter has stood still, on our own clock.

A counter that did not change while *we* looked is the only sign of death: the clocks of two machines are never
compared. After a gap in our own looking nothing can be concluded, and every stopwatch starts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from celery_sticky.ownership.view import Member


@dataclass(slots=True)
class Watch:
    """A stopwatch on one incarnation."""

    counter: int | None
    """None: the store has no counter of this member, and none can appear without a new version of the view."""
    since: float
    changes: int = 0
    """How often the counter has changed since we began to look."""
    spared: bool = False
    """Whether this silence was made to look shorter already."""


class Watches:
    """Stopwatches on all members of a view."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def __getitem__(self, member: Member) -> Watch:
        return self._watches[member.incarnation]

    def read(self, members: Iterable[Member], counters: Mapping[str, int], now: float) -> None:
        """Process counters that were read together with their view."""
        for member in members:
            counter = counters.get(member.incarnation)
            watch = self._watches.setdefault(member.incarnation, Watch(counter, now))
            if counter != watch.counter:
                _see(watch, counter, now)

    def hear(self, incarnation: str, counter: int, now: float) -> None:
        """Process a signal. It may be late: about a member that is gone, or a heartbeat that was already read."""
        watch = self._watches.get(incarnation)
        if watch is not None and (watch.counter is None or counter > watch.counter):
            _see(watch, counter, now)

    def keep(self, members: Iterable[Member], now: float) -> None:
        """Watch these members and no others."""
        present = {member.incarnation for member in members}
        for incarnation in present:
            self._watches.setdefault(incarnation, Watch(0, now))
        for incarnation in self._watches.keys() - present:
            del self._watches[incarnation]

    def restart(self, now: float) -> None:
        """Restart all stopwatches: after a gap, a counter that looks unchanged proves nothing."""
        for watch in self._watches.values():
            watch.since = now

    def spare(self, since: float) -> None:
        """Let no silence have begun before `since`; each is shortened once, or a store that often fails would end none.

        After an outage, members that could not reach the store either need a moment to do so.
        """
        for watch in self._watches.values():
            if watch.since < since and not watch.spared:
                watch.since, watch.spared = since, True

    def guard(self, members: Iterable[Member]) -> dict[str, int]:
        """Return the counters on which an eviction of these members is based."""
        counters = {member.incarnation: self[member].counter for member in members}
        return {incarnation: counter for incarnation, counter in counters.items() if counter is not None}


def _see(watch: Watch, counter: int | None, now: float) -> None:
    watch.counter, watch.since, watch.changes, watch.spared = counter, now, watch.changes + 1, False
