"""The homes of jobs: in which kind of process a job of a worker runs."""

from __future__ import annotations

from enum import StrEnum


class Home(StrEnum):
    """In which kind of process a job runs."""

    SHARED = "shared"
    """With most jobs, in one of the lasting hosts."""
    BUILT_IN = "built-in"
    """With schedules and tickers."""
    QUARANTINE = "quarantine"
    """Alone, because it was to blame for the end of a process."""
    ISOLATED = "isolated"
    """Alone, because it is declared so."""

    @property
    def alone(self) -> bool:
        """Whether the job has its process for itself."""
        return self in (Home.QUARANTINE, Home.ISOLATED)
