"""How long to wait between two looks into the database: pure functions, for those who wait for messages."""

from __future__ import annotations

SAFETY_PAUSE = 3.0
"""Seconds between two looks for messages that were not announced, while the ear is proven."""
LONG_PAUSE = 15.0
"""Seconds between two such looks for what is rarer, or is noticed otherwise too."""
FIRST_PAUSE, SHORT_PAUSE, LONGEST_PAUSE = 0.005, 0.1, 0.35
"""Seconds between two looks while nothing is heard: at first, soon, and after a silence of a quarter of a minute."""
GROWTH = 1.02
"""The factor by which a pause grows that is no longer short."""


def longer(pause: float) -> float:
    """Return the pause that follows one after which nothing was found."""
    return min(2 * pause, SHORT_PAUSE) if pause < SHORT_PAUSE else min(GROWTH * pause, LONGEST_PAUSE)
