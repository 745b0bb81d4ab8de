"""The state of a job reconciler: the slots and key places held here, and their runs. For the rules see `reconciler`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from celery_sticky.jobs.keeper.home import Home
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Report
from celery_sticky.stores.notes import FailedDelivery, Note

_BUILT_IN = "built-in:"
NEVER = float("inf")

JobKey = tuple[str, str]
"""Name and key."""


class RunStage(StrEnum):
    """The stage of a run."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class JobRun:
    """A job running in the host."""

    ref: int
    slot: Slot
    record: JobRecord
    epoch: int
    membership: int
    """The membership whose trust it relies on."""
    since: float
    """When the stage began."""
    host: int = 0
    """The number of the process in which it runs."""
    due: float = NEVER
    """When the call under way takes too long."""
    start_due: float = NEVER
    """When its start takes too long, even if the run is to be stopped meanwhile."""
    called: bool = False
    """The host has called its start, as far as we know."""
    stage: RunStage = RunStage.STARTING
    started: bool = False
    late: bool = False
    """It is being stopped because its start took too long."""
    started_at: float = 0.0
    """When its start completed; 0: it has not."""
    ordered_at: float = 0.0
    """When the host was told to start it."""
    why: str = ""
    """Why it is being stopped, for people."""
    again: bool = False
    """It is being stopped, but its end is not that of the job: the job is paused, or is to start again."""
    home: Home = Home.SHARED
    settles_at: float = NEVER
    """When earlier failures of its job count no more, if it goes on."""
    sent: set[str] = field(default_factory=set)
    """Notifications that were handed to it."""
    taken: dict[str, int] = field(default_factory=dict)
    """Notifications that it handles now -> the number of the delivery."""

    @property
    def is_first(self) -> bool:
        """Whether no start of its job has completed, as far as is known."""
        return self.record.fresh and not self.started

    def is_of(self, record: JobRecord) -> bool:
        """Return whether it is a run of this record's present generation."""
        return record.id == self.record.id and record.generation == self.record.generation


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A checkpoint of a run that is not stored yet."""

    run: JobRun
    number: int
    saved: bytes


@dataclass(slots=True, eq=False)
class HeldSlot:
    """A slot, or the place of a key, that is held here."""

    epoch: int
    membership: int
    """The number of the membership under which it was opened: its runs rely on the trust in that membership."""
    opened: bool = False
    """The store has fenced it for this worker."""
    stopping: bool = False
    """Its runs must end, and none may start."""
    given: bool = False
    """It is stopping to be given away: report when nothing of it is left."""
    in_order: bool = False
    """It is ours until then, so its jobs need not all stop at once."""
    vacant: bool = False
    """It is the place of a key, and had no records at the last look."""
    idle: str = ""
    """Why no job may start in it: it is held only to remove jobs that are to stop. Empty: jobs may start."""
    revision: int = 0
    wanted: dict[JobKey, JobRecord] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    more: bool = False
    """There are more notifications than we have seen."""
    runs: dict[JobKey, JobRun] = field(default_factory=dict)
    failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Id -> consecutive failures of the job, and when it may start again."""
    apart: set[str] = field(default_factory=set)
    """Ids of jobs that must run apart, beside those whose record says so."""
    reports: list[Report] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    failed: list[FailedDelivery] = field(default_factory=list)
    saves: list[PendingSave] = field(default_factory=list)

    @property
    def has_news(self) -> bool:
        """True if there is something that the store does not have yet."""
        return bool(self.reports or self.noted or self.failed or self.saves)

    def leaving(self) -> Callable[[JobRun], bool]:
        """Return which runs are to stop now because the slot stops.

        Those in processes of their own stop first: they may take as long as a stop may take, and the others, which
        cannot start elsewhere before all have ended, run on meanwhile.
        """
        if not (self.stopping and self.in_order and any(run.home.alone for run in self.runs.values())):
            return lambda _: self.stopping
        return lambda run: run.home.alone

    def home_of(self, record: JobRecord, isolated: Collection[str]) -> Home:
        """Return where a job is to run; `isolated`: the names of the jobs that are declared so."""
        if record.name in isolated:
            return Home.ISOLATED
        if record.apart or record.id in self.apart:
            return Home.QUARANTINE
        return Home.BUILT_IN if is_built_in(record.id) else Home.SHARED

    def forgive(self, before: Mapping[JobKey, JobRecord]) -> None:
        """Forget the failures of jobs that are of another generation than before: they start at once."""
        for job in self.wanted.keys() & before.keys() if self.failures else ():
            if self.wanted[job].generation != before[job].generation:
                self.failures.pop(self.wanted[job].id, None)


@dataclass(frozen=True, slots=True)
class DrainedSlot:
    """A report that nothing of a held slot is left here."""

    slot: Slot
    epoch: int = 0
    """The epoch under which it was held; 0: its jobs never ran here."""
    vacant: bool = False
    """It is the place of a key, and has no records any more."""


@dataclass(frozen=True, slots=True)
class JobTimeouts:
    """The settings of a job reconciler; times are in seconds."""

    start_timeout: float
    stop_timeout: float
    max_attempts: int
    max_deliveries: int = 5
    own_max_deliveries: Mapping[str, int] = field(default_factory=dict)
    """Name of a job -> its own maximum number of deliveries of a notification."""

    isolated: frozenset[str] = frozenset()
    """The names of jobs of which each runs in a process of its own."""

    def deliveries_of(self, name: str) -> int:
        """Return how often a job gets a notification that it cannot handle."""
        return self.own_max_deliveries.get(name, self.max_deliveries)


def built_in_job(name: str, slot: int) -> JobRecord:
    """Return the record of a built-in job, such as a schedule's: always wanted, never stored."""
    return JobRecord(name, name, slot, _BUILT_IN + name, b"null", JobState.RUNNING, False, 0, 0, "", "", 0.0, 0)


def is_built_in(job_id: str) -> bool:
    """True if this is the id of a built-in job."""
    return job_id.startswith(_BUILT_IN)


def name_of(record: JobRecord) -> str:
    """Return how a job is named in the log."""
    return f"job {record.name!r} of key {record.key!r}"


def job_key(record: JobRecord) -> JobKey:
    """Return the key under which a job is unique in a keyspace."""
    return record.name, record.key
