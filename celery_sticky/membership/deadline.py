"""Watches for the end of trust, in a thread of its own: in a worker's main process, its pool children and job hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from celery_sticky.membership.lease import boottime
from celery_sticky.platform.native import start_native_thread

STEP = 0.25
"""Longest sleep between checks, in seconds: trust may end at any time, when a member finds itself evicted."""

Reliance = tuple[str, int]
"""Keyspace and membership number that running tasks rely on."""


class Trust(Protocol):
    """The trust in memberships; see `membership.lease.Lease`."""

    def until(self, keyspace: str) -> float:
        """Return when trust ends."""

    def membership(self, keyspace: str) -> int:
        """Return the number of the trusted membership."""

    def trusted(self, keyspace: str, membership: int) -> bool:
        """Return whether trust in this membership lasts."""


class TrustWatch:
    """Calls `ended` while something relies on a membership whose trust has been over for `grace` seconds. No thread."""

    def __init__(
        self,
        lease: Trust,
        relied_on: Callable[[], Iterable[Reliance]],
        ended: Callable[[Reliance], None],
        clock: Callable[[], float] = boottime,
        *,
        grace: float = 0.0,
    ) -> None:
        self._lease, self._relied_on, self._ended = lease, relied_on, ended
        self._clock, self._grace = clock, grace
        self._overdue: dict[Reliance, float] = {}
        """What was relied on without trust at the last look -> since when."""

    def look(self) -> float:
        """Call `ended` where it is due; return the seconds until the next look."""
        pause = STEP
        overdue: dict[Reliance, float] = {}
        for reliance in set(self._relied_on()):
            keyspace, membership = reliance
            now = self._clock()
            if self._lease.membership(keyspace) == membership and now < (until := self._lease.until(keyspace)):
                pause = min(pause, until - now)
            else:
                since = overdue[reliance] = self._overdue.get(reliance, now)
                if now >= since + self._grace:
                    self._ended(reliance)
        self._overdue = overdue
        return max(pause, 0.001)

    def end_all(self) -> None:
        """Call `ended` for everything that is relied on, whatever the lease says."""
        for reliance in set(self._relied_on()):
            self._ended(reliance)


class TrustWatches:
    """Several watches as one; there may be others at each look."""

    def __init__(self, watches: Callable[[], Iterable[TrustWatch]]) -> None:
        self._watches = watches

    def look(self) -> float:
        """See `TrustWatch.look`."""
        return min((watch.look() for watch in self._watches()), default=STEP)

    def end_all(self) -> None:
        """See `TrustWatch.end_all`."""
        for watch in self._watches():
            watch.end_all()


class Deadline:
    """The thread of a `TrustWatch`. With `parent`, everything also ends when that process is no longer our parent."""

    def __init__(self, watch: TrustWatch | TrustWatches, *, parent: int | None = None) -> None:
        self._watch, self._parent = watch, parent
        self._running = True

    def start(self) -> None:
        """Start to watch."""
        start_native_thread(self.run)

    def stop(self) -> None:
        """Stop watching."""
        self._running = False

    def run(self) -> None:
        """Watch in this thread until `stop`."""
        while self._running:
            time.sleep(self._look())  # at most STEP, and not past the end of trust

    def _look(self) -> float:
        if self._parent is not None and os.getppid() != self._parent:
            self._watch.end_all()
            return STEP
        return self._watch.look()
