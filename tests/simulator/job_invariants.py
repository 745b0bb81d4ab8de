"""The witness of jobs: it checks every step of clients, job stores and job hosts, and raises at a broken invariant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_sticky.jobs.wire import Start
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Report, RunResult
from celery_sticky.stores.memory.job_records import Keyspace
from simulator.invariants import Invariant, Violation
from simulator.jobs_scenario import Call, Life
from simulator.terms import MAX_DELIVERIES, QUARANTINE, START_TIMEOUT

if TYPE_CHECKING:
    from simulator.job_host import HostedJob
    from simulator.process import Process

KILLERS = (Life.KILLS_AT_START, Life.KILLS, Life.HANGS_AT_START)
"""Lives that may end in being given up."""
STANDSTILL = 3.0
"""Seconds within which a job that was stopped for another worker starts there, after everything that disturbs that."""
RECOVERS = 20.0
"""Seconds after a fault that it may explain that a job starts late: an eviction, and the next host."""
GIVEN_UP, ENDED = "starts ended without a result", "its process ended"
TOO_LATE, TOO_SLOW = "its start took longer", "its stop took longer"
"""Errors of the reconciler."""


@dataclass(slots=True, eq=False)
class Dispatched:
    """What has become of a dispatch that a server has admitted."""

    call: Call
    runs: int = 0
    longest: float = 0.0
    """The longest time, in seconds, for which its handler was called and its start had not completed."""
    processes: list[Process] = field(default_factory=list)
    """The workers that had to run it."""
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
    reserved: int = 0
    """Starts that the store has reserved."""
    on_its_way: int = 0
    """Starts that were reserved and had not begun when another dispatch took its place: one may wait for a thread."""
    gone_back: bool = False
    """The store lost something; what it knew of this job before, and has done since, shows nothing."""
    notes: dict[str, None] = field(default_factory=dict)
    """Notifications that the store has accepted for it."""
    taken: dict[str, None] = field(default_factory=dict)
    """Those that a run of it has, in the order in which it had them first."""
    failures: Counter[str] = field(default_factory=Counter)
    """How many deliveries of a notification have failed."""
    dead: set[str] = field(default_factory=set)
    """Notifications that are not delivered any more."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"job {self.call.key} #{self.call.number}"


class JobWitness:
    """Checks every step."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self.dispatched: dict[str, Dispatched] = {}
        """By id."""
        self.begun = 0
        """The number of runs so far."""
        self.killed_at = 0.0
        """When a job last killed its host."""
        self._running: dict[int, list[HostedJob]] = defaultdict(list)
        """Key -> runs."""
        self._epochs: dict[Slot, int] = {}
        """The highest epoch of a run."""
        self._fences: dict[Slot, int] = {}
        self._moving: dict[str, float] = {}
        """Id of a wanted job that was stopped -> when."""
        self._calm_from = 0.0

    def disturbed(self, until: float) -> None:
        """Note that until then, a job may start late."""
        self._calm_from = max(self._calm_from, until)

    # -- the store -----------------------------------------------------------------------------

    def admits(self, job_id: str, replaced: str | None) -> None:
        """The store has admitted a dispatch, perhaps in the place of one that was to stop."""
        if replaced is not None:
            before = self.dispatched[replaced]
            before.gone, before.on_its_way = True, before.reserved - before.runs
        self.dispatched[job_id] = Dispatched(self._calls[job_id], gone_back=job_id in self.dispatched)

    def stops(self, job_id: str, *, gone: bool) -> None:
        """The store was told that a job is no longer wanted."""
        self.dispatched[job_id].stopped, self.dispatched[job_id].gone = True, gone
        self._moving.pop(job_id, None)

    def reserves(self, job_ids: Iterable[str]) -> None:
        """The store has reserved a start of each of these jobs."""
        for job_id in job_ids:
            self.dispatched[job_id].reserved += 1

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

    def buries(self, notes: Collection[str]) -> None:
        """The store moves notifications to the dead ones."""
        for job in self.dispatched.values():
            for note in job.notes.keys() & set(notes):
                if not job.gone_back and job.failures[note] < MAX_DELIVERIES:
                    raise Violation(Invariant.NOTE_LOST, f"{job.name}: {note} is dead after {job.failures[note]}")
                job.dead.add(note)

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
            if job.longest < 0.9 * START_TIMEOUT and not any(process.failed for process in job.processes):
                raise Violation(Invariant.JOB_LOST, f"{job.name}: {report.error}; its call took {job.longest:.1f} s")
        elif TOO_SLOW in report.error:
            if job.started or Life.HANGS_AT_START not in job.call.lives:
                raise Violation(Invariant.JOB_LOST, f"{job.name} is removed as failed to start: {report.error}")
        elif ENDED in report.error:
            faults = job.failed or any(process.failed for process in job.processes)
            if not faults and not any(life in KILLERS for life in job.call.lives):
                raise Violation(Invariant.INNOCENT_GIVEN_UP, f"{job.name}: {report.error}")
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

    def ordered(self, start: Start, process: Process) -> None:
        """The host of a worker was told to start a run."""
        self.dispatched[start.id].processes.append(process)

    def begins(self, run: HostedJob) -> None:
        """A run begins, this instant."""
        job = self.dispatched[run.start.id]
        job.runs += 1
        self.begun += 1
        if job.gone and not job.gone_back:
            if not job.on_its_way:
                raise Violation(Invariant.RUN_AFTER_END, str(run))
            job.on_its_way -= 1
        self._check_gap(job, run)
        highest = self._epochs.setdefault(run.slot, run.start.epoch)
        if run.start.epoch < highest:
            raise Violation(Invariant.STALE_START, f"{run}, epoch {highest} was seen")
        self._epochs[run.slot] = run.start.epoch
        for other in self._running[run.key]:
            self._check_overlap(other, run)
        self._running[run.key].append(run)

    def _check_gap(self, job: Dispatched, run: HostedJob) -> None:
        now = run.process.world.now
        since = max(self._moving.pop(run.start.id, now), self._calm_from)
        if now > since + STANDSTILL and not run.host.supervisor.delays_starts:
            raise Violation(Invariant.STOOD_STILL, f"{job.name} did not run for {now - since:.1f} s before {run}")

    def gives_way(self, run: HostedJob) -> None:
        """A run ends because it was told to stop."""
        job = self.dispatched[run.start.id]
        if run.started and not (job.stopped or job.gone):
            self._moving[run.start.id] = run.process.world.now

    def ends(self, run: HostedJob) -> None:
        """Nothing of a run is left."""
        if not run.started:
            job = self.dispatched[run.start.id]
            job.longest = max(job.longest, run.process.world.now - run.called_at)
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

    def fails(self, run: HostedJob, note: str) -> None:
        """A run could not handle a notification."""
        self.dispatched[run.start.id].failures[note] += 1

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
        working = {job_id for job_id, run in running.items() if not run.does_nothing}
        wanted = {record.id for record in records if not self.dispatched[record.id].stopped}
        apart = {record.id for record in records if record.apart}
        alone = Counter(run.process.name for run in running.values() if not run.host.flow.lasting)
        for job_id, job in self.dispatched.items():
            if not job.gone and not job.stopped:
                where, wanted_at = running[job_id].process.name if job_id in working else None, owner(job.call.key)
                full = where is None and job_id in apart and alone[wanted_at or ""] >= QUARANTINE
                if where != wanted_at and not full:
                    return Invariant.NOT_RUNNING, f"{job.name} runs in {where}, not in {wanted_at}"
            if (job.gone or job.stopped) and (job_id in running or not job.gone):
                return Invariant.NOT_STOPPED, f"{job.name} is still there"
        for record in records:
            run = running.get(record.id)
            if run is not None and (record.state, record.fresh, record.worker, record.epoch) != run.as_recorded:
                return Invariant.NOT_RUNNING, f"{run} is recorded as {record}"
        for job_id in wanted & running.keys():
            job = self.dispatched[job_id]
            if left := job.notes.keys() - job.taken.keys() - job.dead:
                return Invariant.NOTE_LOST, f"{job.name} still has not {sorted(left)}"
        return None
