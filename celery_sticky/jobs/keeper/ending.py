"""How long a leaving worker waits for its runs: as long as they still end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from celery_sticky.jobs.keeper.held import NEVER, JobRun

GRACE = 2.0
"""Seconds for what follows the end of a call: a killed host's end, and the reports to the keeper."""


class Ending:
    """The wait for the last runs. `now` is in seconds on the clock of the runs."""

    def __init__(self, stop_timeout: float, now: float, *, cold: bool = False) -> None:
        """`cold`: wait only as long as one call may take. The worker is in a hurry."""
        self._stop_timeout, self._cold = stop_timeout, cold
        self._fewest: int | None = None
        self._until = now + stop_timeout + GRACE

    def goes_on(self, runs: Sequence[JobRun], now: float) -> bool:
        """Return whether to wait for these runs: they end one after the other, and each within its own timeout."""
        if self._cold:
            return bool(runs) and now < self._until
        if self._fewest is not None and len(runs) < self._fewest:
            self._until = now + self._stop_timeout + GRACE
        self._fewest = len(runs) if self._fewest is None else min(self._fewest, len(runs))
        return bool(runs) and now < max(self._until, *(run.due + GRACE for run in runs if run.due < NEVER), 0.0)
