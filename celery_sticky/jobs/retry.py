"""When a job that failed is started again, and when no more."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BACKOFF = 0.1
"""Minimum pause after a failed start, in seconds."""
SETTLED = 60.0
"""Seconds after which a job that runs without a fault counts as working: earlier failures count no more."""
STRIKE_FACTOR, LONGEST_TRIAL = 4.0, 86_400.0
"""After each strike a job runs apart so many times longer, up to so many seconds, before it counts as working."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a job; times are in seconds."""

    max_starts: int | None = None
    """After so many starts or runs that failed, one after the other, the job is given up; None: never."""
    backoff: float = 1.0
    """The pause after the first failure. It doubles."""
    backoff_max: float = 60.0

    def wrong(self) -> str:
        """Return what is wrong with the values; empty: nothing."""
        most = self.max_starts
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            return f"max_starts is {most!r}, it must be a whole number, at least 1"
        for option, seconds in (("retry_backoff", self.backoff), ("retry_backoff_max", self.backoff_max)):
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not number or not LEAST_BACKOFF <= seconds < float("inf"):
                return f"{option} is {seconds!r}, it must be at least {LEAST_BACKOFF:g} seconds"
        return ""

    def pause(self, failures: int) -> float:
        """Return the pause before the next start, after so many failures."""
        return min(self.backoff * 2.0 ** min(failures - 1, 30), self.backoff_max)

    def gives_up(self, failures: int) -> bool:
        """Return whether the job is not started again after so many failures."""
        return self.max_starts is not None and failures >= self.max_starts


def settled_after(strikes: int, *, apart: bool) -> float:
    """Return for how many seconds a job must run without a fault to count as working."""
    return min(SETTLED * STRIKE_FACTOR ** min(strikes - 1, 10), LONGEST_TRIAL) if apart else SETTLED


DEFAULT_RETRY = Retry()
"""The policy of jobs that declare none."""
