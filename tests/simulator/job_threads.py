"""The threads of a simulated job host for one kind of call. It plays `jobs.host.threads.Lane`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.job_host import HostedJob


class Threads:
    """A few threads, and the runs whose calls wait for one."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[HostedJob, None] = {}

    def enter(self, run: HostedJob) -> bool:
        """Take a thread; False: the run waits for one."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[run] = None
        return False

    def withdraw(self, run: HostedJob) -> bool:
        """Return whether the run waited; it does no longer."""
        waited = run in self._waiting
        self._waiting.pop(run, None)
        return waited

    def leave(self) -> HostedJob | None:
        """Give a thread back; return the run that has it now."""
        if not self._waiting:
            self._free += 1
            return None
        run = next(iter(self._waiting))
        del self._waiting[run]
        return run
