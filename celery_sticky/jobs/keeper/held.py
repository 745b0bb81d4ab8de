"""The state of a job reconciler: the slots and key places held here, and their runs. For the rules see `reconciler`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Note, Report

_BUILT_IN = "built-in:"

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
    stage: RunStage = RunStage.STARTING
    started: bool = False
    late: bool = False
    """It is being stopped because its start took too long."""
    sent: set[str] = field(default_factory=set)
    """Notifications that were handed to it."""


@dataclass(slots=True, eq=False)
class HeldSlot:
    """A slot, or the place of a key, that is held here."""

    epoch: int
    membership: int
    """The number of the membership under which it was opened: its runs rely on the trust in that membership."""
    opened: bool = False
    """The store has fenced it for this worker."""
    stopping: bool = False
    tasks_drained: bool = False
    """None of its tasks is left here. For a key's place, the placer handles the tasks."""
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
    """Id -> consecutive failures of the job here, and when it may start again."""
    reports: list[Report] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)


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


def built_in_job(name: str, slot: int) -> JobRecord:
    """Return the record of a built-in job, such as a schedule's: always wanted, never stored."""
    return JobRecord(name, name, slot, _BUILT_IN + name, b"null", JobState.RUNNING, False, 0, 0, "", "", 0.0, 0)


def is_built_in(job_id: str) -> bool:
    """True if this is the id of a built-in job."""
    return job_id.startswith(_BUILT_IN)


def job_key(record: JobRecord) -> JobKey:
    """Return the key under which a job is unique in a keyspace."""
    return record.name, record.key
