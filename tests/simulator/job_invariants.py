"""The witness of jobs: it checks every step of clients, job stores and job hosts, and raises at a broken invariant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Report, RunResult
from celery_sticky.stores.memory.job_records import Keyspace
from simulator.invariants import Invariant, Violation
from simulator.jobs_scenario import Call, Life

if TYPE_CHECKING:
    from simulator.job_host import HostedJob
    from simulator.process import Process

KILLERS = (Life.KILLS_AT_START, Life.KILLS, Life.HANGS_AT_START)
"""Lives that may end in being given up."""
GIVEN_UP, TOO_LATE = "starts ended without a result", "its start took longer"
"""Errors of the reconciler."""


@dataclass(slots=True, eq=False)
class Dispatched:
    """What has become of a dispatch that a server has admitted."""

    call: Call
    runs: int = 0
    started: bool = False
    """A run of it has started."""
    failed: bool = False
    """A run of it has ended with an error."""
    ended: bool = False
    """A run of it has ended by itself, without an error."""
    stopped: bool = False
    """A client has stopped it."""
    gone: bool = False
    """The store has removed its record."""
    gone_back: bool = False
    """The store lost something; what it knew of this job before, and has done since, shows nothing."""
    notes: dict[str, None] = field(default_factory=dict)
    """Notifications that the store has accepted for it."""
    taken: dict[str, None] = field(default_factory=dict)
    """Those that a run of it has, in the order in which it had them first."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"job {self.call.key} #{self.call.number}"


class JobWitness:
    """Checks every step."""

    def __init__(self, calls: Mapping[str, Call], *, calm: bool) -> None:
        self._calls = calls
        self.dispatched: dict[str, Dispatched] = {}
        """By id."""
        self.begun = 0
        """The number of runs so far."""
        self.killed_at = 0.0
        """When a job last killed its host."""
        self._calm = calm
        """Whether nothing happens but what jobs do themselves."""
        self._running: dict[int, list[HostedJob]] = defaultdict(list)
        """Key -> runs."""
        self._epochs: dict[Slot, int] = {}
        """The highest epoch of a run."""
        self._fences: dict[Slot, int] = {}

    # -- the store -----------------------------------------------------------------------------

    def admits(self, job_id: str, replaced: str | None) -> None:
        """The store has admitted a dispatch, perhaps in the place of one that was to stop."""
        if replaced is not None:
            self.dispatched[replaced].gone = True
        self.dispatched[job_id] = Dispatched(self._calls[job_id], gone_back=job_id in self.dispatched)

    def stops(self, job_id: str, *, gone: bool) -> None:
        """The store was told that a job is no longer wanted."""
        self.dispatched[job_id].stopped, self.dispatched[job_id].gone = True, gone

    def notes(self, job_id: str, note: str) -> None:
        """The store has accepted a notification."""
        self.dispatched[job_id].notes[note] = None

    def opens(self, slot: Slot, epoch: int) -> None:
        """The store has fenced the records of a slot."""
        if epoch < (fence := self._fences.get(slot, 0)):
            raise Violation(Invariant.FENCE_BACK, f"slot {slot}: {epoch} after {fence}")
        self._fences[slot] = epoch

    def writes(self, slot: Slot, epoch: int) -> None:
        """The store has carried out a write under this epoch."""
        if epoch != (fence := self._fences.get(slot)):
            raise Violation(Invariant.FORMER_TENURE, f"slot {slot}: a write under {epoch}, the fence is {fence}")

    def drops(self, notes: Collection[str]) -> None:
        """A keeper removes notifications because their jobs have them."""
        for job in self.dispatched.values():
            if not job.gone_back and (lost := (job.notes.keys() & set(notes)) - job.taken.keys()):
                raise Violation(Invariant.NOTE_LOST, f"{job.name} never had {sorted(lost)}")

    def settles(self, reports: Sequence[Report], removed: Collection[JobRecord]) -> None:
        """The store has taken in run results, and has removed these records."""
        gone = {record.id for record in removed}
        for report in reports:
            job = self.dispatched[report.id]
            if report.result is RunResult.STARTED and not (job.started or job.gone_back):
                raise Violation(Invariant.JOB_LOST, f"{job.name} is reported as started, but was not")
            if report.result is not RunResult.STARTED and report.id in gone:
                job.gone = True
                self._check_removal(job, report)

    def _check_removal(self, job: Dispatched, report: Report) -> None:
        if job.stopped or job.gone_back or (report.result is RunResult.ENDED and job.ended):
            return
        if report.result is RunResult.ENDED:
            raise Violation(Invariant.JOB_LOST, f"{job.name} is removed as ended: it neither ended nor was stopped")
        if GIVEN_UP in report.error:
            if not any(life in KILLERS for life in job.call.lives):
                raise Violation(Invariant.INNOCENT_GIVEN_UP, f"{job.name}: {report.error}")
        elif TOO_LATE in report.error:
            if self._calm and Life.HANGS_AT_START not in job.call.lives and job.call.seconds < 1:
                raise Violation(Invariant.JOB_LOST, f"{job.name}: {report.error}")
        elif not job.failed:
            raise Violation(Invariant.JOB_LOST, f"{job.name} is removed as failed: {report.error}")

    def goes_back(self, written: Keyspace) -> None:
        """The store lost all data, or goes on with older data: this."""
        for job_id, job in self.dispatched.items():
            record = written.records.get(job_id)
            job.gone, job.gone_back = record is None, True
            job.stopped = record is not None and record.state is JobState.STOPPING
            notes = written.at(record.slot).notes if record is not None else ()
            job.notes = {note.id: None for note in notes if note.key == str(job.call.key)}
        self._fences = {slot: at.epoch for slot, at in written.slots.items() if isinstance(slot, int)}

    # -- job hosts -----------------------------------------------------------------------------

    def begins(self, run: HostedJob) -> None:
        """A run begins, this instant."""
        job = self.dispatched[run.start.id]
        job.runs += 1
        self.begun += 1
        if job.gone and not job.gone_back:
            raise Violation(Invariant.RUN_AFTER_END, str(run))
        highest = self._epochs.setdefault(run.slot, run.start.epoch)
        if run.start.epoch < highest:
            raise Violation(Invariant.STALE_START, f"{run}, epoch {highest} was seen")
        self._epochs[run.slot] = run.start.epoch
        for other in self._running[run.key]:
            self._check_overlap(other, run)
        self._running[run.key].append(run)

    def ends(self, run: HostedJob) -> None:
        """Nothing of a run is left."""
        self._running[run.key].remove(run)

    def thaws(self, run: HostedJob) -> None:
        """A run goes on after it stood still."""
        for other in self._running[run.key]:
            if other is not run:
                self._check_overlap(run, other)

    def _check_overlap(self, run: HostedJob, other: HostedJob) -> None:
        if not (run.stands_still or other.stands_still):
            raise Violation(Invariant.TWO_RUNS, f"{run} beside {other}")

    def takes(self, run: HostedJob, note: str) -> None:
        """A run has a notification."""
        job = self.dispatched[run.start.id]
        if job.gone_back:
            job.taken[note] = None
            return
        if note not in job.notes:
            raise Violation(Invariant.NOTE_ELSEWHERE, f"{run} has {note}")
        if note not in job.taken and any(later > note for later in job.taken):
            raise Violation(Invariant.NOTE_OUT_OF_ORDER, f"{run} has {note} after {max(job.taken)}")
        job.taken[note] = None

    def drained(self, process: Process, slot: Slot) -> None:
        """A keeper says that no job of a slot is left in its worker."""
        for run in self.running:
            if run.process is process and run.slot == slot:
                raise Violation(Invariant.DRAINED_EARLY, f"{process.origin} has drained slot {slot}: {run}")

    @property
    def running(self) -> list[HostedJob]:
        """The runs under way."""
        return [run for runs in self._running.values() for run in runs]

    # -- what must hold in the end -------------------------------------------------------------

    def disorder(
        self, records: Collection[JobRecord], owner: Callable[[int], str | None]
    ) -> tuple[Invariant, str] | None:
        """Return what is not in order yet, given all records of the store, and the worker where a key belongs."""
        running = {run.start.id: run for run in self.running}
        wanted = {record.id for record in records if not self.dispatched[record.id].stopped}
        for job_id, job in self.dispatched.items():
            if not job.gone and not job.stopped:
                where = running[job_id].process.name if job_id in running else None
                if where != (wanted_at := owner(job.call.key)):
                    return Invariant.NOT_RUNNING, f"{job.name} runs in {where}, not in {wanted_at}"
            if (job.gone or job.stopped) and (job_id in running or not job.gone):
                return Invariant.NOT_STOPPED, f"{job.name} is still there"
        for record in records:
            run = running.get(record.id)
            if run is not None and (record.state, record.fresh, record.worker, record.epoch) != run.as_recorded:
                return Invariant.NOT_RUNNING, f"{run} is recorded as {record}"
        for job_id in wanted & running.keys():
            if left := self.dispatched[job_id].notes.keys() - self.dispatched[job_id].taken.keys():
                return Invariant.NOTE_LOST, f"{self.dispatched[job_id].name} still has not {sorted(left)}"
        return None
