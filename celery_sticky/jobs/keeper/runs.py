"""The runs of a job reconciler, and what their host says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, JobTimeouts, RunStage, is_built_in, job_key
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.keeper.suspects import LONE_STARTS, Suspects, Who
from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Started
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import STOPPED, JobRecord, Report, RunResult

RETRY_FIRST, RETRY_LAST = 1.0, 60.0
"""Seconds until a job that failed is started again: first and maximum; the pause doubles."""


class Runs:
    """The runs in the job host. `now` is in seconds on one clock."""

    def __init__(
        self,
        keyspace: str,
        timeouts: JobTimeouts,
        suspects: Suspects,
        refs: Iterator[int],
        held: Mapping[Slot, HeldSlot],
        settling: Settling,
        agenda: Agenda,
    ) -> None:
        self._keyspace, self._timeouts, self._suspects, self._refs = keyspace, timeouts, suspects, refs
        self._held, self._settling, self._agenda = held, settling, agenda
        self._runs: dict[int, JobRun] = {}
        self._relied: dict[int, int] = {}
        """Membership number -> runs."""

    def all(self) -> list[JobRun]:
        """Return the runs."""
        return list(self._runs.values())

    def memberships(self) -> list[int]:
        """Return the numbers of the memberships that runs rely on. Any thread may ask, and often does."""
        return list(self._relied)

    def who(self, record: JobRecord) -> Who:
        """Return the name of a job among the suspects."""
        return self._keyspace, record.id

    def begin(self, slot: Slot, held: HeldSlot, record: JobRecord, now: float) -> JobRun:
        """Add a run of this record, whose start was reserved."""
        run = JobRun(next(self._refs), slot, record, held.epoch, held.membership, now)
        held.wanted[job_key(record)] = record
        held.runs[job_key(record)] = self._runs[run.ref] = run
        self._suspects.began(self.who(record), now)
        self._relied[run.membership] = self._relied.get(run.membership, 0) + 1
        self._agenda.add_at(now + self._timeouts.start_timeout, slot)
        return run

    def drop(self, held: HeldSlot) -> None:
        """Forget the runs of a slot that another worker already has."""
        for run in held.runs.values():
            self._forget(run)

    def host_ended(self, now: float) -> None:
        """Take in the end of the host and of all its runs. Wanted jobs start again in the next host."""
        for slot, held in self._held.items():
            for run in held.runs.values():
                self._forget(run)
                self._on_lost(held, run, now)
            held.runs.clear()
            self._agenda.add(slot)

    def heard(self, message: Message, now: float) -> None:
        """Take in a message of the host about a run."""
        match message:
            case Started(ref) if run := self._runs.get(ref):
                self._on_started(run, now)
            case Failed(ref, error) if run := self._runs.get(ref):
                self._on_ended(run, error or "its start failed", now)
            case Ended(ref, error) if run := self._runs.get(ref):
                self._on_ended(run, error, now)
            case Noted(ref, note) if run := self._runs.get(ref):
                self._settling.noted(run.slot, note)

    def report(self, run: JobRun, result: RunResult, error: str = "") -> None:
        """Queue the result of a run for storing."""
        if not is_built_in(run.record.id):
            self._settling.report(run.slot, Report(run.record.id, result, error))

    def _forget(self, run: JobRun) -> None:
        del self._runs[run.ref]
        self._suspects.ended(self.who(run.record))
        self._relied[run.membership] -= 1
        if not self._relied[run.membership]:
            del self._relied[run.membership]

    def _on_lost(self, held: HeldSlot, run: JobRun, now: float) -> None:
        """Handle a run that ended with its host."""
        if run.late and held.epoch == run.epoch and not held.stopping:
            self._on_failed(held, run, self._too_late, now)
        elif charge := self._suspects.charged(self.who(run.record)):
            held.failures[run.record.id] = charge.count, charge.until
            self._agenda.add_at(charge.until, run.slot)
            if run.started or not run.record.fresh:
                self.report(run, RunResult.FAILED, f"the job host died {charge.count} times when it was tried alone")
            elif run.record.attempt >= self._timeouts.max_attempts and charge.lone >= LONE_STARTS:
                self.report(run, RunResult.FAILED, given_up(run.record.attempt))

    def _on_started(self, run: JobRun, now: float) -> None:
        if run.stage is RunStage.STARTING:
            run.stage, run.since, run.started = RunStage.RUNNING, now, True
            self._suspects.started(self.who(run.record))
            self.report(run, RunResult.STARTED)
            self._settling.look(run.slot)
            self._agenda.add(run.slot)

    def _on_ended(self, run: JobRun, error: str, now: float) -> None:
        held = self._held[run.slot]
        self._forget(run)
        del held.runs[job_key(run.record)]
        self._agenda.add(run.slot)
        if run.late:
            error = self._too_late
        elif run.stage is RunStage.STOPPING:
            error = ""
            if held.stopping or held.epoch != run.epoch:
                return  # the job is still wanted: elsewhere, or here again
        if error:
            self._on_failed(held, run, error, now)
        else:
            self.report(run, RunResult.ENDED, "" if run.started else STOPPED)

    @property
    def _too_late(self) -> str:
        return f"its start took longer than {self._timeouts.start_timeout:g} s"

    def _on_failed(self, held: HeldSlot, run: JobRun, error: str, now: float) -> None:
        job_id = run.record.id
        settled = run.stage is RunStage.RUNNING and now >= run.since + RETRY_LAST
        failures = 1 if settled else held.failures.get(job_id, (0, 0.0))[0] + 1
        at = now + min(RETRY_FIRST * 2.0 ** min(failures - 1, 10), RETRY_LAST)
        held.failures[job_id] = (failures, at)
        self._agenda.add_at(at, run.slot)
        self.report(run, RunResult.FAILED, error)


def given_up(starts: int) -> str:
    """Return the error of a job that is given up after so many starts."""
    return f"{starts} starts ended without a result: the job kills the process it starts in"
