"""The contract of a job store: keep the wanted jobs of one keyspace, one record for each name and key.

A record holds the request (id, payload, whether to stop) and the progress (state, worker, epoch, attempts). The owner
of the record's slot makes the two agree. Each write of an owner names the epoch under which it opened the slot, and a
write under another epoch is refused: a worker that lost the slot changes nothing.

A `slot` here is a slot number or, in a placed keyspace, the place of one key: a text, `keys.job_place`. There may be
any number of places, so a place without records leaves nothing behind, neither fence nor revision.

A job store object is used by one thread, except `wake`, which any thread may call. Every verb is one atomic step at the
server and may be repeated. If a verb raises `StoreUnavailable`, it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from celery_sticky.keys import Slot

STOPPED = "stopped before it started"
"""The outcome of a job that was stopped or replaced before any start of it succeeded."""


class JobState(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    """No owner has begun to start it."""
    STARTING = "starting"
    """Its owner has reserved a start."""
    RUNNING = "running"
    FAILING = "failing"
    """Its last start failed, or it ended with an error; its owner will try again."""
    STOPPING = "stopping"
    """It is no longer wanted; the record is removed when its owner has stopped the job."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be admitted."""

    name: str
    key: str
    slot: Slot
    id: str
    """The id of this dispatch; a repeated dispatch has the same id."""
    payload: bytes
    """JSON; the store never reads it."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The stored state of a job."""

    name: str
    key: str
    slot: Slot
    id: str
    payload: bytes
    state: JobState
    fresh: bool
    """True until a start succeeds; a failed start removes a fresh job."""
    attempt: int
    """The number of starts that were reserved."""
    epoch: int
    worker: str
    """The worker of the last reserved start; `epoch` is its epoch (empty and 0: none)."""
    error: str
    """Why the last start or the last run failed; empty: it did not fail."""
    created: float
    """When it was admitted, in seconds since the Unix epoch, by the store's clock."""
    version: int
    """The slot's revision when the record last changed."""


SEEN_NOTES = 1000
"""Maximum number of a slot's notes that `look` returns: shared equally among jobs with notes, at least one each."""
SEEN_RECORDS = 250
"""Number of records after which a look ends, because the server serves nobody else meanwhile."""


class Admission(StrEnum):
    """The result of a dispatch."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    """The same dispatch was admitted before."""
    CONFLICT = "conflict"
    """A dispatch of the same id had another name, key or payload."""
    EXISTS = "exists"
    FULL = "full"
    CLOSED = "closed"


class Fate(StrEnum):
    """The result of a notification."""

    SENT = "sent"
    NO_JOB = "no job"
    FULL = "full"


class RunResult(StrEnum):
    """The run result that an owner reports for a job."""

    STARTED = "started"
    FAILED = "failed"
    """Its start raised, or it ended with an error."""
    ENDED = "ended"
    """It stopped as requested, or ended by itself: the record is removed."""


@dataclass(frozen=True, slots=True)
class Report:
    """The run result of one job."""

    id: str
    result: RunResult
    error: str = ""


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """How the start of a dispatched job went: an empty error is a success."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A notification that waits for its job."""

    id: str
    """Assigned by the store; unique in this slot."""
    name: str
    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class SlotJobs:
    """Everything stored for one slot."""

    revision: int
    """Grows with each change of the slot's records or notes. It never stands for two contents, even if the server loses
    its last writes. 0: nothing is stored."""
    records: tuple[JobRecord, ...]
    """In no particular order."""
    notes: tuple[Note, ...]
    """In order of arrival. At most 1,000, or one per job; each job gets an equal share, oldest notes first."""
    more: bool = False
    """True if there are more notes."""


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """The places of keys that have records."""

    revision: int
    """Grows with each change in any place."""
    revisions: Mapping[str, int]
    """Place -> revision."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The result of reserving starts."""

    attempts: Mapping[str, int]
    """Id -> attempt."""
    revision: int = 0
    """The slot's revision now, if it was the known one before, so that nothing else changed. Otherwise 0."""


class JobStore(Protocol):
    """The place where the wanted jobs of one keyspace are stored."""

    # -- for clients that dispatch jobs --------------------------------------------------------

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """Store a job and signal its slot. For a REPEATED dispatch return the outcome of its start too, if known.

        The checks, in this order: CLOSED; REPEATED or CONFLICT, if a record has this dispatch id or its outcome is
        still kept; EXISTS, if a record of this name and key is not STOPPING; FULL, if `max_queued` fresh jobs wait in
        the keyspace (not counting those whose start has settled); ADMITTED. A record that is STOPPING is replaced as if
        it had ended, with the outcome STOPPED if it was fresh; its owner stops the old run first.

        Outcomes are kept for `outcome_ttl` seconds; here this covers jobs ended by `stop`, `close_keyspace` or a
        replacement.
        """

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """Wait at most `timeout` seconds for the outcome of a dispatched job's start. Several callers may wait for one.

        None: the outcome is not known yet, or no longer kept.
        """

    def stop(self, slot: Slot, name: str, key: str) -> bool:
        """Stop a job, and signal its slot; return False if there is no such job.

        A QUEUED record is removed at once, with the outcome STOPPED and with its waiting notes; any other becomes
        STOPPING.
        """

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """Leave a note for a job, and signal its slot; FULL: `limit` notes already wait for this job.

        NO_JOB: there is no such record, or it is STOPPING.
        """

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """Return records of the keyspace, optionally only those of one slot, name or key."""

    def keys(self, name: str) -> Collection[str]:
        """Return the keys that have a job of this name, except those whose record is STOPPING."""

    def close_keyspace(self, *, closed: bool) -> None:
        """Stop every job as `stop` does and admit no more; with `closed` False, admit jobs again."""

    def claim_tick(self, name: str, number: int) -> bool:
        """Record that tick `number` of a ticker is being run; return False if this or a later tick already was."""

    # -- for the owner of a slot ---------------------------------------------------------------

    def open(self, slot: Slot, epoch: int) -> None:
        """Fence the slot's records for this epoch. For the place of a key without records it does nothing.

        Raises:
            Fenced: a higher epoch has opened it.
        """

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """Return what is stored for the slots whose revision differs from the known one (0: nothing known).

        Slots are read in the given order. Once the answer has `SEEN_RECORDS` records it ends, without the slots behind.

        A slot that was never written to has revision 0, and so has the place of a key without records.
        """

    def places(self, known: int) -> JobPlaces | None:
        """Return the places of keys that have records; None if their revision is the known one (0: none ever)."""

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """Reserve the start of those jobs that are still wanted: STARTING, by this worker and epoch.

        Ids without a record, or whose record is STOPPING, are left out. `known` is the known revision of the slot.

        Raises:
            Fenced: the slot is fenced for another epoch, and has records; nothing was changed.
        """

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        *,
        outcome_ttl: float,
        known: int = 0,
    ) -> int:
        """Store run results, and drop notes that were delivered; ignore ids without a record.

        Return the slot's revision as `Reserved` does.

        STARTED: the record becomes RUNNING (STOPPING stays) and is no longer fresh; if it was, its outcome is a
        success. FAILED: a fresh record is removed with its notes, with the error as its outcome; another one becomes
        FAILING, or is removed if it was STOPPING. ENDED: the record and its notes are removed; if it was fresh, its
        outcome is the report's error, or a success.

        Raises:
            Fenced: as for `reserve`.
        """

    def where(self, slot: Slot) -> str:
        """Return where the records of a slot are, in readable form."""

    # -- for both ------------------------------------------------------------------------------

    def watch(self, timeout: float) -> Collection[Slot]:
        """Wait at most `timeout` seconds for signals; return the changed slots (none: time is up, or `wake`).

        Signals are hints: they may be lost, late or repeated. The first call subscribes and returns at once.
        """

    def wake(self) -> None:
        """Make the current `watch`, or the next one, return at once. Any thread may call this."""

    def close(self) -> None:
        """Close every connection. May be called twice."""
