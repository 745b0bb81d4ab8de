"""Consumer step: the very end. When the pool has drained, the rest of the slots is given away and the threads end.

Celery calls `shutdown` of consumer steps after the pool has stopped, in reverse order and only at the end, while `stop`
also comes at every lost connection.
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
"""Seconds the last slots may take to be given away."""
LEAST = 0.1
"""Seconds for those whose turn comes when that is over."""


class Handover(bootsteps.StartStopStep):
    """Gives everything away at the end."""

    requires = ("celery_sticky.bootsteps.delivery:Delivery",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._context: Any = getattr(consumer.controller, "sticky", None)

    def include_if(self, consumer: Any) -> bool:
        """Only where the worker takes part."""
        return self._context is not None

    def create(self, consumer: Any) -> Handover:
        """Return the service that is started and stopped: this step."""
        return self

    def start(self, consumer: Any) -> None:
        """Nothing to start."""

    def stop(self, consumer: Any) -> None:
        """Nothing: this also comes when a connection is lost."""

    terminate = stop

    def shutdown(self, consumer: Any) -> None:
        """The pool is gone: nothing that it had not begun will run here."""
        context = self._context
        for run in tuple(context.runs.values()):
            if context.has_processes and run.pid:
                kill_group(run.pid)  # of a cold shutdown something may be left
            if context.has_processes or not run.accepted:
                run.unstart()
        done = _finish(
            context.members.values(),
            STOP_TIMEOUT if context.jobs is None else max(STOP_TIMEOUT, context.jobs.stop_timeout),
        )
        if context.jobs is not None:
            context.jobs.finish(STOP_TIMEOUT)
        _finish(context.placers.values(), STOP_TIMEOUT)
        context.courier.shutdown(STOP_TIMEOUT)
        context.results.finish(STOP_TIMEOUT)
        if not all(done):
            logger.warning("sticky: not every slot was given away; the rest moves when the lease has run out")


def _finish(some: Collection[Any], timeout: float) -> list[Any]:
    """Finish them all within one time: they have been told to leave, and do so side by side."""
    deadline = time.monotonic() + timeout
    return [one.finish(max(LEAST, deadline - time.monotonic())) for one in some]
