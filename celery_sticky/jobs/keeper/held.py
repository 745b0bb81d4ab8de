"""What a roster works on: the slots and places of keys that are held here, and what runs of them; rules: `roster`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Note, Report

_BUILT_IN = "built-in:"

JobKey = tuple[str, str]
"""Name and key."""


class RunStage(StrEnum):
    """How far a run is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class JobRun:
    """A job in the host."""

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
    """It is stopped because its start took too long."""
    sent: set[str] = field(default_factory=set)
    """Notes that were handed to it."""


@dataclass(slots=True, eq=False)
class HeldSlot:
    """A slot that is held here, or the place of a key."""

    epoch: int
    membership: int
    """The membership under which it was opened: what runs of it relies on its trust."""
    opened: bool = False
    """The store has fenced it for us."""
    stopping: bool = False
    tasks_drained: bool = False
    """Nothing of its tasks is left here. Of a key's place, whoever claims the key sees to them."""
    vacant: bool = False
    """It is that of a key, and without records when it was last looked at."""
    idle: str = ""
    """Why nothing may be started in it: it is held to let go of what is to stop. Empty: it may."""
    revision: int = 0
    wanted: dict[JobKey, JobRecord] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    more: bool = False
    """There are notes that we have not seen."""
    runs: dict[JobKey, JobRun] = field(default_factory=dict)
    failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Id -> how often in a row the job has failed here, and when it may start again."""
    reports: list[Report] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DrainedSlot:
    """Nothing of a held slot is left here."""

    slot: Slot
    epoch: int = 0
    """Under which it was ours; 0: its jobs never were."""
    vacant: bool = False
    """It is that of a key, and has no records any more."""


@dataclass(frozen=True, slots=True)
class JobTimeouts:
    """The settings that matter here; in seconds."""

    start_timeout: float
    stop_timeout: float
    max_attempts: int


def built_in_job(name: str, slot: int) -> JobRecord:
    """Return the record of a job that is always wanted and nowhere written down, like a schedule's."""
    return JobRecord(name, name, slot, _BUILT_IN + name, b"null", JobState.RUNNING, False, 0, 0, "", "", 0.0, 0)


def is_built_in(job_id: str) -> bool:
    """Whether this is the id of a job that is nowhere written down."""
    return job_id.startswith(_BUILT_IN)


def job_key(record: JobRecord) -> JobKey:
    """Return what is unique in a keyspace."""
    return record.name, record.key
