"""The contract of a job store: keep the wanted jobs of one keyspace, one record for each name and key.

A record holds the request (id, payload, whether to stop) and the progress (state, worker, epoch, attempts). The owner
of the record's slot makes the two agree. Each write of an owner names the epoch under which it opened the slot, and a
write under another epoch is refused: a worker that lost the slot changes nothing.

A `slot` here is a slot number or, in a placed keyspace, the place of one key. There may be any number of places, so a
place without records leaves nothing behind, neither fence nor revision.

A job store object is used by one thread, except `wake`, which any thread may call. Every verb is one atomic step at the
server and may be repeated. If a verb raises `StoreUnavailable`, it may or may not have happened.

The verbs about all jobs (`records`, `counts`, `keys`, `close_keyspace`, `forget_places`) may take many steps, so that
the server serves others in between. A record that stays is in the answer once, as it was at one moment of the call; one
that is added or removed meanwhile may be in it. After a `StoreUnavailable` they may have happened in part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from celery_sticky.errors import StickyError
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.notes import DeadNoteStore, FailedDelivery, Fate, Note
from celery_sticky.stores.ticks import Tick

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
    FAILED = "failed"
    """It was given up: it is not started again until somebody asks for that."""
    STOPPING = "stopping"
    """It is no longer wanted; the record is removed when its owner has stopped the job."""
    PAUSING = "pausing"
    """It is to be paused; a run of it may be left."""
    PAUSED = "paused"
    """Nothing of it runs until it is resumed."""


UNWANTED = frozenset((JobState.STOPPING, JobState.PAUSING, JobState.PAUSED, JobState.FAILED))
"""States in which a job must not run."""


JobAddress = tuple[Slot, str, str]
"""Slot, name and key of a job."""


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
    durable: bool = False
    """Whether the job stays if its first start fails."""


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
    """True until its first start succeeds or fails; a failed one removes a job that is not durable."""
    attempt: int
    """The number of starts that were reserved."""
    epoch: int
    worker: str
    """The worker of the last reserved start, also of a job that this one replaced; `epoch` is its epoch (empty and 0:
    none)."""
    error: str
    """Why the last start or run failed; empty: it did not, or it has run well since."""
    created: float
    """When it was admitted, in seconds since the Unix epoch, by the store's clock."""
    version: int
    """The slot's revision when the record last changed."""
    generation: int = 0
    """Grows when the job must start again: a run of an earlier generation is stopped first."""
    saved: bytes | None = None
    """The last checkpoint: JSON; the store never reads it. A new checkpoint alone gives the slot no new revision."""

    @property
    def replaces(self) -> bool:
        """True if it replaced a job that was stopping, and a run of that job may be left."""
        return self.attempt == 0 and self.epoch > 0

    durable: bool = False
    """Whether it stays if its first start fails."""
    failures: int = 0
    """How many starts and runs have failed one after the other."""
    strikes: int = 0
    """How often it has ended, blocked or outlasted its process."""
    apart: bool = False
    """Whether it is to run in a process of its own, because it has a new strike."""
    retry_at: float = 0.0
    """Until when it was to wait after its last failure, in seconds since the Unix epoch, by the store's clock."""


SEEN_NOTES = 1000
"""Maximum number of a slot's notes that `look` returns: shared equally among jobs with notes, at least one each."""
SEEN_RECORDS = 250
"""Number of records after which a look ends, because the server serves nobody else meanwhile."""


def digest(name: str, key: str, payload: bytes) -> str:
    """Return a hash that distinguishes the payloads of a job, and dispatches that have the same id."""
    return hashlib.sha256(json.dumps([name, key]).encode() + payload).hexdigest()


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


class RunResult(StrEnum):
    """The run result that an owner reports for a job."""

    WITHDRAWN = "withdrawn"
    """Its start has ended without a result, and the job is not the cause."""
    STARTED = "started"
    SETTLED = "settled"
    """After failures, it has run well for a while: they count no more."""
    FAILED = "failed"
    """Its start raised, or it ended with an error."""
    GIVEN_UP = "given up"
    """It has failed, and is not to be started again."""
    ENDED = "ended"
    """It stopped as requested, or ended by itself: the record is removed."""
    PAUSED = "paused"
    """Nothing of it runs, as requested."""
    UNCLEAN = "unclean"
    """As ENDED, but its stop raised an error, which is kept for those who wait for the end."""


@dataclass(frozen=True, slots=True)
class Report:
    """The run result of one job."""

    id: str
    result: RunResult
    error: str = ""
    failures: int = 0
    strikes: int = 0
    apart: bool = False
    """The new values of the record, if it has failed."""
    pause: float = 0.0
    """Seconds until it is started again, if it has failed."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of one run."""

    id: str
    attempt: int
    """The attempt of the run; `number` counts the checkpoints of its host. Both together say which is the later one."""
    number: int
    saved: bytes


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """How the start of a dispatched job went: an empty error is a success."""

    error: str = ""


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
    revisions: Mapping[KeyPlace, int]


REPEATED = 2
"""So many failures, one after the other, make a job that runs again one that keeps failing."""


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs of one slot that are in the same state."""

    count: int
    slot: int | None
    """None: they are stored by their keys, in a placed keyspace."""
    state: JobState
    worker: str
    epoch: int
    """0 for jobs that are stored by their keys."""
    failures: int
    """At most `REPEATED`."""
    apart: bool
    name: str
    key: str
    """Name and key of one of them."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The jobs of a keyspace, counted."""

    groups: Sequence[JobGroup] = ()
    """In no particular order."""
    dead_notes: int = 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """The result of reserving starts."""

    attempts: Mapping[str, int]
    """Id -> attempt."""
    revision: int = 0
    """The slot's revision now, if it was the known one before, so that nothing else changed. Otherwise 0."""


class JobStore(DeadNoteStore, Protocol):
    """The place where the wanted jobs of one keyspace are stored."""

    # -- for clients that dispatch jobs --------------------------------------------------------

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """Store a job and signal its slot. For a REPEATED dispatch return the outcome of its start too, if known.

        The checks, in this order: CLOSED; REPEATED or CONFLICT, if a record has this dispatch id or its outcome is
        still kept; EXISTS, if a record of this name and key is not STOPPING; FULL, if `max_queued` fresh jobs wait in
        the keyspace (not counting those whose start has settled); ADMITTED. A record that is STOPPING is replaced as if
        it had ended, with the outcome STOPPED if it was fresh; its owner stops the old run first, and the new record
        shows where that run may be left.

        Outcomes are kept for `outcome_ttl` seconds; here this covers jobs ended by `stop`, `close_keyspace` or a
        replacement.
        """

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """Wait at most `timeout` seconds for the outcome of a dispatched job's start. Several callers may wait for one.

        None: the outcome is not known yet, or no longer kept.
        """

    def stop(self, slot: Slot, name: str, key: str) -> str | None:
        """Stop a job, and signal its slot; return its id, or None if there is no such job.

        A record is removed at once, with its waiting notes, and with the outcome STOPPED if it is fresh, if nothing of
        it can run: it is FAILED, or PAUSED, or QUEUED and no earlier run may be left (`epoch` is 0). Any other becomes
        STOPPING.
        """

    def update(self, slot: Slot, name: str, key: str, payload: bytes | None, *, restart: bool) -> str | None:
        """Give a job another payload (None: it keeps its own), and signal its slot; return its id.

        `restart` gives the record the next generation, so its owner stops a run and starts it again. None: there is no
        such record, or it is STOPPING.
        """

    def pause(self, slot: Slot, name: str, key: str) -> str | None:
        """Pause a job, and signal its slot; return its id, or None as `update` does.

        A QUEUED record of which no earlier run may be left becomes PAUSED at once, any other PAUSING.
        """

    def resume(self, slot: Slot, name: str, key: str) -> str | None:
        """Have a paused job start again, and signal its slot; return its id, or None as `update` does.

        A PAUSED record becomes QUEUED, a PAUSING one too, with the next generation. Others stay as they are.
        """

    def ending(self) -> int:
        """Return the number of records that are STOPPING, or that replace a job of which a run may be left."""

    def stop_error(self, job_id: str) -> str:
        """Return the error that the stop of this job raised; empty: it raised none, or it is no longer kept."""

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """Leave a note for a job, and signal its slot; FULL: `limit` notes already wait for this job.

        NO_JOB: there is no such record, or it is STOPPING.
        """

    def admit_each(
        self, jobs: Sequence[NewJob], *, max_queued: int, outcome_ttl: float
    ) -> Sequence[Admission | StickyError]:
        """Call `admit` for each job, in few round trips; return the answers in order.

        Each is a step of its own. The answer for a job that the server refuses to store is the `StoreRefused`.
        """

    def stop_each(self, jobs: Sequence[JobAddress]) -> Sequence[str | StickyError | None]:
        """Call `stop` for each job, as `admit_each` does."""

    def notify_each(self, notes: Sequence[tuple[JobAddress, bytes]], *, limit: int) -> Sequence[Fate | StickyError]:
        """Call `notify` for each job, with its payload, as `admit_each` does."""

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """Return the record of this name and key, or None."""

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """Return records of the keyspace, optionally only those of one slot, name or key."""

    def counts(self) -> JobCounts:
        """Count the jobs and the dead notes of the keyspace."""

    def keys(self, name: str) -> Mapping[str, str]:
        """Return the keys that have a job of this name, except those whose record is STOPPING.

        Each has the `digest` of the job's payload.
        """

    def close_keyspace(self, *, closed: bool) -> None:
        """Admit no more jobs, then stop every job as `stop` does; with `closed` False, admit jobs again.

        If another client admits jobs again meanwhile, the remaining ones are not stopped.
        """

    def forget_places(self) -> int:
        """Remove every record of a key's place, with its notes; return their number. Fresh ones have outcome STOPPED.

        For a keyspace without placement: nobody looks there, and nothing is stopped.
        """

    def claim_tick(self, name: str, every: float) -> Tick:
        """Claim the current period of a ticker, unless it or a later one is claimed.

        Periods are `every` seconds long, in whole milliseconds, and are counted from the Unix epoch by the store's
        clock. A period is known by its start, so that a changed interval does not make it look old. If the last claimed
        period begins in the future, the clock was set back: then the current period counts as claimed, and no more.
        """

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

        Ids without a record, or whose record is STOPPING, PAUSING or PAUSED, are left out. `known` is the known
        revision of the slot.

        Raises:
            Fenced: the slot is fenced for another epoch, and has records; nothing was changed.
        """

    def save(self, slot: Slot, epoch: int, checkpoints: Sequence[Checkpoint]) -> Collection[str]:
        """Store checkpoints in the records of their jobs; return the ids of those jobs. Others have no record here.

        A checkpoint is dropped if the record has a later one: it is a request that arrived late.

        Raises:
            Fenced: as for `reserve`.
        """

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        failed: Sequence[FailedDelivery] = (),
        *,
        outcome_ttl: float,
        known: int = 0,
    ) -> int:
        """Store run results, drop notes that were handled, count failed deliveries; ignore ids without a record.

        Return the slot's revision as `Reserved` does. Notes come before run results, which may remove their job.

        WITHDRAWN: a fresh record becomes QUEUED, without worker and epoch, and this start does not count as an attempt.
        STARTED: the record becomes RUNNING and is no longer fresh; if it was, its outcome is a success. The error of an
        earlier run stays. In both cases STOPPING, PAUSING and PAUSED stay. SETTLED: the error goes, no failure counts
        any more, and it need not run apart. FAILED: the record becomes FAILING (PAUSING and PAUSED stay), and takes
        error and counts from the report; if it was fresh, the error is its outcome. It is removed instead, with its
        notes, if it was STOPPING, or fresh and not durable. GIVEN_UP: as FAILED, but the record that stays becomes
        FAILED. PAUSED: a PAUSING record becomes PAUSED, without worker and epoch. ENDED: the record and its notes are
        removed; if it was fresh, its outcome is the report's error, or a success. UNCLEAN: as ENDED, and the error is
        kept for `outcome_ttl` seconds (see `stop_error`), also if the record is already replaced.

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
