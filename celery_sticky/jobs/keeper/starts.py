"""Which jobs a job reconciler may start, and the runs of those whose start was reserved. Pure."""

from __future__ import annotations

from dataclasses import replace

from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, JobTimeouts, is_built_in
from celery_sticky.jobs.keeper.runs import Runs, given_up
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.keeper.suspects import LONE_STARTS, Suspects
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Report, Reserved, RunResult


class Starts:
    """The starts in one keyspace. `now` is in seconds on one clock."""

    def __init__(
        self, timeouts: JobTimeouts, suspects: Suspects, runs: Runs, settling: Settling, agenda: Agenda, misplaced: str
    ) -> None:
        """`misplaced`: why jobs in numbered slots do not run, because the keyspace is a placed one; else empty."""
        self._timeouts, self._suspects, self._misplaced = timeouts, suspects, misplaced
        self._runs, self._settling, self._agenda = runs, settling, agenda
        self._kept_back: dict[Slot, None] = {}
        """Slots with starts that must wait for starts of other jobs."""
        self.ask_at = float("inf")
        """When to ask again for those."""

    def take_kept_back(self) -> None:
        """Have the slots reconciled now whose starts had to wait."""
        self.ask_at = float("inf")
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
        for record in held.wanted.values():
            attempt = reserved.attempts.get(record.id)
            if attempt is None:
                continue
            if record.fresh and attempt > 2 * self._timeouts.max_attempts:
                # It was not given up earlier because it kills whole workers, so each new worker knows nothing of it.
                self._settling.report(slot, Report(record.id, RunResult.FAILED, given_up(attempt - 1)))
            else:
                runs.append((self._runs.begin(slot, held, replace(record, attempt=attempt), now), attempt))
        return runs

    def _may_start(self, slot: Slot, held: HeldSlot, record: JobRecord, now: float) -> bool:
        if record.state is JobState.STOPPING:
            # The worker that ran it gave the slot away or died.
            self._settling.report(slot, Report(record.id, RunResult.ENDED))
            return False
        if self._misplaced and isinstance(slot, int) and not is_built_in(record.id):
            # The sender took the keyspace for a plain one, so nobody here has claimed the key.
            if record.fresh or record.error != self._misplaced:
                self._settling.report(slot, Report(record.id, RunResult.FAILED, self._misplaced))
            return False
        if held.idle:
            if not record.fresh and record.error != held.idle:  # a failed report would remove a fresh record
                self._settling.report(slot, Report(record.id, RunResult.FAILED, held.idle))
            return False
        if now < held.failures.get(record.id, (0, 0.0))[1]:
            return False
        return self._suspects_allow(record, now)

    def _suspects_allow(self, record: JobRecord, now: float) -> bool:
        last_chance = record.fresh and 0 < record.attempt >= self._timeouts.max_attempts - LONE_STARTS
        at = self._suspects.ask(self._runs.who(record), now, last_chance=last_chance)
        if at > now:
            self._kept_back[record.slot] = None
            self.ask_at = min(self.ask_at, at)
        return at <= now
