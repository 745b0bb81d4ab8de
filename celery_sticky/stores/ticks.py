"""The periods of a ticker, as a job store counts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of claiming the current period of a ticker."""

    claimed: bool
    """True for one caller in each period."""
    next_in: float
    """Seconds until the next period begins, by the store's clock."""


def milliseconds(seconds: float) -> int:
    """Return a duration in whole milliseconds, at least 1."""
    return max(1, round(seconds * 1000))
