"""Transient messages to a topic exchange, such as Celery's events: they are dropped while the database is away.

A worker sends its heartbeat event in Celery's loop, and Kombu would repeat it there until the broker answers. The pump
bears an outage without a restart of Celery's consumer; so the loop must not stand still for an event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from celery_sticky.errors import BrokerUnavailable

PAUSE = 30.0
"""Seconds after a failure for which nothing is tried: an attempt may last as long as the socket timeout."""

logger = logging.getLogger("celery_sticky")


class Spared:
    """Attempts at intervals while they fail."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, float("-inf")

    def try_to(self, publish: Callable[[], None]) -> None:
        """Publish once, or drop the message."""
        if self._clock() < self._next:
            return
        try:
            publish()
        except BrokerUnavailable as error:
            self._next = self._clock() + PAUSE
            logger.warning("events are dropped for %g s, the broker does not take them: %s", PAUSE, error)
