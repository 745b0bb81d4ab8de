"""Consumer step: the very end. When the pool has drained, it gives away the remaining slots and ends the threads.

Celery calls `shutdown` of consumer steps in reverse order after the pool has stopped, and only at the end; it calls
`stop` also at every lost connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from celery import bootsteps

from celery_sticky.platform.reaper import kill_group

logger = logging.getLogger("celery_sticky")

STOP_TIMEOUT = 5.0
"""Seconds in which the last slots should be given away."""
LEAST = 0.1
"""Minimum seconds for each member whose turn comes after that."""


class Handover(bootsteps.StartStopStep):
    """Gives away everything at the end."""

    requires = ("celery_sticky.bootsteps.delivery:Delivery",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._context: Any = getattr(consumer.controller, "sticky", None)

    def include_if(self, consumer: Any) -> bool:
        """Include the step only if the worker takes part."""
        return self._context is not None

    def create(self, consumer: Any) -> Handover:
        """Return the service that is started and stopped: this step."""
        return self

    def start(self, consumer: Any) -> None:
        """Do nothing."""

    def stop(self, consumer: Any) -> None:
        """Do nothing: Celery calls this also when a connection is lost."""

    terminate = stop

    def shutdown(self, consumer: Any) -> None:
        """Finish everything. The pool is gone, so tasks that it had not begun will not run here."""
        context = self._context
        for run in tuple(context.runs.values()):
            if context.has_processes and run.pid:
                kill_group(run.pid)  # a cold shutdown may leave processes
            if context.has_processes or not run.accepted:
                run.lose_pool()
        if context.jobs is not None:
            context.jobs.await_stops(cold=context.ending)
        done = _finish(context.members.values(), STOP_TIMEOUT)
        if context.jobs is not None:
            context.jobs.finish(STOP_TIMEOUT)
        _finish(context.placers.values(), STOP_TIMEOUT)
        context.courier.shutdown(STOP_TIMEOUT)
        context.results.finish(STOP_TIMEOUT)
        context.trust_watch.stop()
        if not all(done):
            logger.warning("sticky: not every slot was given away; the rest moves when the lease has expired")


def _finish(some: Collection[Any], timeout: float) -> list[Any]:
    """Finish all of them within one timeout: they were told to leave, and do so in parallel."""
    deadline = time.monotonic() + timeout
    return [one.finish(max(LEAST, deadline - time.monotonic())) for one in some]
