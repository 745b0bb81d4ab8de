"""Strikes: which jobs may be to blame if a job host ends again and again, and it is not known whom it executed.

The cause may be a thread of a library, or memory. The jobs that were in the host at each such end are suspects. Half of
them go to another process, so that its end, or that of the first one, halves them, until one is left. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

Who = tuple[str, str]
"""Keyspace and id of a job."""

FORGET = 600.0
"""Seconds without such an end after which nobody is suspected any more."""


class Strikes:
    """The suspects of one worker. `now` is in seconds on one clock."""

    def __init__(self) -> None:
        self._suspects: frozenset[Who] = frozenset()
        self._apart: frozenset[Who] = frozenset()
        self._ended_at = float("-inf")

    def apart(self, who: Who, now: float) -> bool:
        """Return whether this job is to run in the other process."""
        return who in self._apart and now <= self._ended_at + FORGET

    def host_ended(self, jobs: Collection[Who], now: float) -> Who | None:
        """Take in that a process has ended in which these jobs were; return the one to blame, if only one is left."""
        again, self._ended_at = now <= self._ended_at + FORGET, now
        present = frozenset(jobs)
        if not again:  # once is no pattern: somebody may just have killed that process
            self._suspects, self._apart = present, frozenset()
            return None
        # If the suspects were elsewhere, somebody else did it.
        self._suspects = self._suspects & present or present
        if len(self._suspects) == 1:
            (who,) = self._suspects
            self._suspects = self._apart = frozenset()
            return who
        self._apart = frozenset(sorted(self._suspects)[: len(self._suspects) // 2])
        return None
