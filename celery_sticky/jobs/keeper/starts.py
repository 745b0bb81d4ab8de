"""Which jobs a job reconciler may start, and the runs of those whose start was reserved. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, JobTimeouts, is_built_in
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.runs import Runs
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import STOPPED, UNWANTED, JobRecord, JobState, Report, Reserved, RunResult

Place = Callable[[JobRecord, Home], int]
"""Returns the number of the process in which a job is to start; 0: none yet."""


class Starts:
    """The starts in one keyspace. `now` is in seconds on one clock."""

    def __init__(
        self, timeouts: JobTimeouts, place: Place, runs: Runs, settling: Settling, agenda: Agenda, misplaced: str
    ) -> None:
        """`misplaced`: why jobs in numbered slots do not run, because the keyspace is a placed one; else empty."""
        self._timeouts, self._place, self._misplaced = timeouts, place, misplaced
        self._runs, self._settling, self._agenda = runs, settling, agenda
        self._kept_back: dict[Slot, None] = {}
        """Slots with starts that must wait for a process."""

    def hosts_changed(self) -> None:
        """Have the slots reconciled whose starts had to wait for a process."""
        kept_back, self._kept_back = self._kept_back, {}
        self._agenda.update(kept_back)

    def due(self, slot: Slot, held: HeldSlot, now: float) -> list[str]:
        """Return the ids of the jobs to start in a slot that is open here."""
        idle = [record for job, record in held.wanted.items() if job not in held.runs]
        return [record.id for record in idle if self._may_start(slot, held, record, now)]

    def reserved(self, slot: Slot, held: HeldSlot, reserved: Reserved, now: float) -> list[tuple[JobRun, int]]:
        """Take in reserved starts; return the runs to start, with their attempts."""
        held.revision = reserved.revision or held.revision
        runs = []
        for record in list(held.wanted.values()):
            attempt = reserved.attempts.get(record.id)
            if attempt is None:
                continue
            if record.fresh and attempt > 2 * self._timeouts.max_attempts:
                # It was not given up earlier because it kills whole workers, so each new worker knows nothing of it.
                self._settling.report(slot, Report(record.id, RunResult.GIVEN_UP, given_up(attempt - 1)))
            elif host := self._place_of(held, record):
                record = replace(record, attempt=attempt)
                runs.append((self._runs.begin(slot, held, record, host, now), attempt))
            else:  # its process has died in the meantime
                self._kept_back[slot] = None
                if record.fresh:
                    self._settling.report(slot, Report(record.id, RunResult.WITHDRAWN))
        return runs

    def _place_of(self, held: HeldSlot, record: JobRecord) -> int:
        return self._place(record, held.home_of(record, self._timeouts.isolated))

    def _may_start(self, slot: Slot, held: HeldSlot, record: JobRecord, now: float) -> bool:
        if record.state is JobState.QUEUED:
            held.failures.pop(record.id, None)  # somebody wants it again
        if record.state is JobState.STOPPING:
            # The worker that ran it gave the slot away or died.
            self._settling.report(slot, Report(record.id, RunResult.ENDED, STOPPED if record.fresh else ""))
            return False
        if record.state in UNWANTED:
            if record.state is JobState.PAUSING:
                self._settling.report(slot, Report(record.id, RunResult.PAUSED))
            return False
        if self._misplaced and isinstance(slot, int) and not is_built_in(record.id):
            # The sender took the keyspace for a plain one, so nobody here has claimed the key.
            if record.fresh or record.error != self._misplaced:
                self._settling.report(slot, _idle(record, self._misplaced))
            return False
        if held.idle:
            if not record.fresh and record.error != held.idle:  # a failed report would remove a fresh record
                self._settling.report(slot, _idle(record, held.idle))
            return False
        if now < held.failures.get(record.id, (0, 0.0))[1]:
            return False
        if not self._place_of(held, record):
            self._kept_back[slot] = None
            return False
        return True


def _idle(record: JobRecord, why: str) -> Report:
    """Return the report that a job cannot start here. What is known of its failures stays."""
    return Report(record.id, RunResult.FAILED, why, record.failures, record.strikes, record.apart)


def given_up(starts: int) -> str:
    """Return the error of a job that is given up after so many starts."""
    return f"{starts} starts ended without a result: the job kills the worker it starts in"
