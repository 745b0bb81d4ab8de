"""Watches the end of trust, in a thread of its own, in the worker's main process and in each child of its pool."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from celery_sticky.worker.lease import Lease, boottime
from celery_sticky.worker.native import start_native_thread

STEP = 0.25
"""Seconds the watch sleeps at most: trust may end at once, when a member finds itself evicted."""

Held = tuple[str, int]
"""Keyspace and term of a membership that running tasks rely on."""


class Deadline:
    """Calls `ended` while something is held whose trust has ended for `grace` seconds.

    With `parent`, also when that process is no longer our parent.
    """

    def __init__(
        self,
        lease: Lease,
        held: Callable[[], Iterable[Held]],
        ended: Callable[[Held], None],
        *,
        grace: float = 0.0,
        parent: int | None = None,
    ) -> None:
        self._lease, self._held, self._ended = lease, held, ended
        self._grace, self._parent = grace, parent
        self._overdue: dict[Held, float] = {}
        self._running = True

    def start(self) -> None:
        """Begin to watch."""
        start_native_thread(self.run)

    def stop(self) -> None:
        """Watch no longer."""
        self._running = False

    def run(self) -> None:
        """Watch, in this thread."""
        while self._running:
            time.sleep(self._look())

    def _look(self) -> float:
        pause = STEP
        overdue: dict[Held, float] = {}
        for held in set(self._held()):
            keyspace, term = held
            now = boottime()
            if self._parent is not None and os.getppid() != self._parent:
                self._ended(held)
            elif self._lease.term(keyspace) == term and now < (until := self._lease.until(keyspace)):
                pause = min(pause, until - now)
            else:
                since = overdue[held] = self._overdue.get(held, now)
                if now >= since + self._grace:
                    self._ended(held)
        self._overdue = overdue
        return max(pause, 0.001)
