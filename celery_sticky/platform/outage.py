"""Log messages about a store that does not answer: when that begins, at intervals while it lasts, and when it is over.

As Celery does for a lost broker: a warning first, errors while it cannot be reached, an info line when it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from celery_sticky.errors import RecordUnusable, StickyError, StoreRefused, StoreUnavailable

REPEAT = 30.0
"""Seconds between log lines about one outage."""
REMEDY = "Trying again until it answers; check that it runs and that this worker can reach it: `celery sticky doctor`"
_WORDS: Mapping[type[StickyError], tuple[str, str, str]] = {
    StoreUnavailable: ("the store does not answer", "the store has not answered", REMEDY),
    StoreRefused: ("the store refuses", "the store has refused", "Trying again until it does not"),
    RecordUnusable: ("the store has a key that is not ours", "a key was in the way", "Trying again until it is gone"),
    StickyError: ("the store cannot be used", "the store could not be used", "Trying again"),
}
"""Texts for an error: at its first occurrence, while it lasts, and what is being done."""


class Outage:
    """The outages of one store, as seen by one thread of a worker."""

    def __init__(self, logger: logging.Logger, who: str, meaning: Callable[[float], str]) -> None:
        self._logger, self._who, self._meaning = logger, who, meaning
        self._since = self._said = 0.0
        self._told: set[type[StickyError]] = set()
        self.lasts = False
        """True while an outage lasts."""

    def failed(self, error: StickyError, now: float) -> None:
        """Log that the store did not answer a request, or gave an unusable answer."""
        what, then, remedy = _WORDS[type(error) if type(error) in _WORDS else StickyError]
        if not self.lasts or type(error) not in self._told:
            self._since = self._since if self.lasts else now
            self._told = self._told | {type(error)} if self.lasts else {type(error)}
            self.lasts, self._said = True, now
            self._logger.warning("%s: %s: %s. %s. %s.", self._who, what, error, self._meaning(now), remedy)
        elif now >= self._said + REPEAT:
            self._said = now
            what = f"{then} for {now - self._since:.0f} s"
            self._logger.error("%s: %s: %s. %s. Trying again.", self._who, what, error, self._meaning(now))

    def over(self, now: float) -> None:
        """Log that the store answers again; do nothing without an outage."""
        if self.lasts:
            self.lasts = False
            self._logger.info("%s: the store answers again, after %.1f s", self._who, now - self._since)
