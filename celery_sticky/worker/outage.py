"""What the log says of a store that does not answer: when that begins, now and then while it lasts, when it is over.

As Celery does for a lost broker: a warning at first, errors while it cannot be reached, a word when it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_sticky.errors import StickyError

REPEAT = 30.0
"""Seconds between two words about one outage."""
REMEDY = "Trying again until it answers: does the server run, can this worker reach it? See `celery sticky doctor`"


class Outage:
    """The outages of one store, as one thread of a worker meets them."""

    def __init__(self, logger: logging.Logger, who: str, meaning: Callable[[float], str]) -> None:
        self._logger, self._who, self._meaning = logger, who, meaning
        self._since = self._said = 0.0
        self.lasts = False
        """Whether one has begun and is not over."""

    def failed(self, error: StickyError, now: float) -> None:
        """The store was asked and has not answered."""
        if not self.lasts:
            self.lasts, self._since, self._said = True, now, now
            what = "the store does not answer"
            self._logger.warning("%s: %s: %s. %s. %s.", self._who, what, error, self._meaning(now), REMEDY)
        elif now >= self._said + REPEAT:
            self._said = now
            what = f"the store has not answered for {now - self._since:.0f} s"
            self._logger.error("%s: %s: %s. %s. Trying again.", self._who, what, error, self._meaning(now))

    def over(self, now: float) -> None:
        """The store has answered whatever it was asked. Nothing, if it had never failed to."""
        if self.lasts:
            self.lasts = False
            self._logger.info("%s: the store answers again, after %.1f s", self._who, now - self._since)
