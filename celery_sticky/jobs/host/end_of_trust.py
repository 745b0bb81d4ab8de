"""The end of trust in a job host: its runs are stopped in order shortly before it, as far as there is time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from celery_sticky.jobs.host.surroundings import Answer, HostedRun
from celery_sticky.jobs.wire import Ended, Failed, Start, Yielded
from celery_sticky.membership.lease import Lease

logger = logging.getLogger("celery_sticky.jobs")

STEP = 0.25
"""Seconds between looks at the lease."""


class EndOfTrust:
    """Stops the runs of a host whose trust ends in less than `seconds`. It runs in the loop."""

    def __init__(self, lease: Lease, runs: Callable[[], Mapping[int, tuple[HostedRun, Start]]], seconds: float) -> None:
        """`runs` returns the runs, by ref."""
        self._lease, self._runs, self._seconds = lease, runs, seconds
        self._yielding: set[int] = set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the lease from now on."""

        def look() -> None:
            self.look()
            loop.call_later(STEP, look)

        look()

    def look(self) -> None:
        """Stop the runs whose trust ends soon."""
        runs = self._runs()
        relied_on = {(start.keyspace, start.membership) for _, start in runs.values()}
        ending = {one for one in relied_on if not self._lease.trusted(*one, seconds=self._seconds)}
        stopped = Counter[str]()
        for ref, (run, start) in list(runs.items()) if ending else ():
            if (start.keyspace, start.membership) in ending and ref not in self._yielding:
                self._yielding.add(ref)
                stopped[start.keyspace] += 1
                run.stop()
        for keyspace, count in stopped.items():
            logger.warning(
                "jobs: the lease of keyspace %s ends within %.1f s and is not renewed: stopping %d jobs",
                keyspace,
                self._seconds,
                count,
            )

    def answer(self, answer: Answer) -> Answer | Yielded:
        """Return what to tell the worker: a run that ends because of this is not a job that ends."""
        if isinstance(answer, Ended | Failed) and answer.ref in self._yielding:
            self._yielding.discard(answer.ref)
            return Yielded(answer.ref, answer.error)
        return answer
