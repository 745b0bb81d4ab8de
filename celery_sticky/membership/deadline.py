"""Watches for the end of trust, in a thread of its own, in the worker's main process and in each pool child."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.platform.native import start_native_thread

STEP = 0.25
"""Longest sleep between checks, in seconds: trust may end at any time, when a member finds itself evicted."""

Reliance = tuple[str, int]
"""Keyspace and membership number that running tasks rely on."""


class Deadline:
    """Calls `ended` while tasks rely on a membership whose trust has been over for `grace` seconds.

    With `parent`, also calls it when that process is no longer our parent.
    """

    def __init__(
        self,
        lease: Lease,
        relied_on: Callable[[], Iterable[Reliance]],
        ended: Callable[[Reliance], None],
        *,
        grace: float = 0.0,
        parent: int | None = None,
    ) -> None:
        self._lease, self._relied_on, self._ended = lease, relied_on, ended
        self._grace, self._parent = grace, parent
        self._overdue: dict[Reliance, float] = {}
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
        pause = STEP
        overdue: dict[Reliance, float] = {}
        for reliance in set(self._relied_on()):
            keyspace, membership = reliance
            now = boottime()
            if self._parent is not None and os.getppid() != self._parent:
                self._ended(reliance)
            elif self._lease.membership(keyspace) == membership and now < (until := self._lease.until(keyspace)):
                pause = min(pause, until - now)
            else:
                since = overdue[reliance] = self._overdue.get(reliance, now)
                if now >= since + self._grace:
                    self._ended(reliance)
        self._overdue = overdue
        return max(pause, 0.001)
