"""What a job store must do: keep which jobs of one keyspace are wanted, one record for each name and key.

A record says what is wanted (id, payload, whether it is to stop) and what came of it (state, worker, epoch, attempts).
The owner of the record's slot makes the two agree. Whatever an owner writes names the epoch under which it opened the
slot, and any other one is refused: a worker that lost the slot changes nothing.

A `slot` here is the number of one or, where keys are placed, the place of one key: a text, `keys.job_place`. There
may be any number of these, so one without records leaves nothing behind, neither fence nor revision.

A job store object is used by one thread, except `wake`, which any thread may call. Every verb is one atomic step at the
server. `StoreUnavailable` from a verb means: it may or may not have happened. Every verb may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from celery_sticky.keys import Slot

STOPPED = "stopped before it started"
"""The outcome of a job that was stopped, or replaced, before a start of it had succeeded."""


class JobState(StrEnum):
    """What became of a wanted job so far."""

    QUEUED = "queued"
    """No owner has begun to start it."""
    STARTING = "starting"
    """Its owner has reserved a start."""
    RUNNING = "running"
    FAILING = "failing"
    """Its last start failed, or it ended with an error; its owner tries again."""
    STOPPING = "stopping"
    """It is wanted no more; the record goes when its owner has stopped it."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be admitted."""

    name: str
    key: str
    slot: Slot
    id: str
    """Of this dispatch: a repeat of it has the same."""
    payload: bytes
    """JSON; never read by the store."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of a job."""

    name: str
    key: str
    slot: Slot
    id: str
    payload: bytes
    state: JobState
    fresh: bool
    """No start of it has succeeded yet; a failed one removes it."""
    attempt: int
    """Starts that were reserved."""
    epoch: int
    worker: str
    """Where, and under which epoch, the last start was reserved (0 and empty: never)."""
    error: str
    """Why the last start failed, or the last run ended; empty: it did not."""
    created: float
    """When it was admitted, in seconds since the epoch, by the store's clock."""
    version: int
    """The slot's revision when the record last changed."""


SEEN_NOTES = 1000
"""Notes of a slot that `look` returns, at most: in equal shares to the jobs that have some, one each at least."""
SEEN_RECORDS = 250
"""Records after which a look ends: nobody else is served meanwhile."""


class Admission(StrEnum):
    """What became of a dispatch."""

    ADMITTED = "admitted"
    REPEATED = "repeated"
    """The same dispatch was admitted before."""
    CONFLICT = "conflict"
    """A dispatch of the same id had another name, key or payload."""
    EXISTS = "exists"
    FULL = "full"
    CLOSED = "closed"


class Fate(StrEnum):
    """What became of a notification."""

    SENT = "sent"
    NO_JOB = "no job"
    FULL = "full"


class RunResult(StrEnum):
    """What an owner says of a job."""

    STARTED = "started"
    FAILED = "failed"
    """Its start raised, or it ended with an error."""
    ENDED = "ended"
    """It has stopped as was wanted, or has come to its own end: the record goes."""


@dataclass(frozen=True, slots=True)
class Report:
    """A verdict on the run of one job."""

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
    """The store's own; never another note's of this slot."""
    name: str
    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class SlotJobs:
    """All that is written down for one slot."""

    revision: int
    """Grows with each change of the slot's records or notes, and never stands for two contents: not even where the
    server has lost its last writes. 0: nothing is written down."""
    records: tuple[JobRecord, ...]
    """In no order."""
    notes: tuple[Note, ...]
    """In the order in which they came; at most a thousand, or one for each job, of each the oldest, shared equally."""
    more: bool = False
    """There are others."""


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """The places of keys that have records."""

    revision: int
    """Grows with each change in any of them."""
    revisions: Mapping[str, int]
    """Place -> revision."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The starts that were reserved."""

    attempts: Mapping[str, int]
    """Id -> attempt."""
    revision: int = 0
    """The slot's revision now, if it was the known one before: so nothing else has changed. Otherwise 0."""


class JobStore(Protocol):
    """Where the wanted jobs of one keyspace are written down."""

    # -- for who wants jobs --------------------------------------------------------------------

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """Write down a wanted job, and signal its slot; and how its start went, if that is known (REPEATED).

        In this order: CLOSED; REPEATED or CONFLICT, where a dispatch of this id is a record's, or its outcome is still
        kept; EXISTS, where a record of this name and key is not STOPPING; FULL, where `max_queued` fresh jobs wait in
        the keyspace (not counting those whose start has settled); ADMITTED. A record that was STOPPING is replaced, as
        if it had ended, and is told STOPPED if it was fresh: its owner stops the old run first.

        Outcomes are kept for `outcome_ttl` seconds: here, of what `stop`, `close_keyspace` and a replacement end.
        """

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """Wait at most `timeout` seconds for how the start of a dispatched job went. Several may wait for one.

        None: it is not known yet, or no longer kept.
        """

    def stop(self, slot: Slot, name: str, key: str) -> bool:
        """Want a job no more, and signal its slot; False: there is none.

        A record that is QUEUED goes at once, with the outcome STOPPED, and the notes that wait for it; any other one is
        STOPPING.
        """

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """Leave a note for a job that is wanted, and signal its slot; FULL: `limit` notes wait for this job.

        NO_JOB: there is no such record, or it is STOPPING.
        """

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """Return the records of the keyspace, all of one slot, of one name, of one key."""

    def keys(self, name: str) -> Collection[str]:
        """Return the keys that have a job of this name, but for those whose record is STOPPING."""

    def close_keyspace(self, *, closed: bool) -> None:
        """Stop every job as by `stop`, and admit no more; or (`closed` False) admit again."""

    def claim_tick(self, name: str, number: int) -> bool:
        """Note that tick `number` of a ticker is being run; False: this one, or a later one, was before."""

    # -- for the owner of a slot ---------------------------------------------------------------

    def open(self, slot: Slot, epoch: int) -> None:
        """Fence the slot's records for this epoch. In the place of a key without records it does nothing.

        Raises:
            Fenced: a higher epoch has opened it.
        """

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """Return what is written down for those slots whose revision differs from the known one (0: nothing known).

        In this order: once there are `SEEN_RECORDS` in the answer it ends, and nothing is said of the slots behind.

        A slot in which nothing was ever written down has revision 0, and so has the place of a key without records.
        """

    def places(self, known: int) -> JobPlaces | None:
        """Return the places of keys that have records; None where their revision is the known one (0: none ever)."""

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """Reserve the start of those jobs that are still wanted: STARTING, by this worker and epoch.

        Not wanted: an id that is no record's, or whose record is STOPPING. `known` is the revision known of the slot.

        Raises:
            Fenced: the slot is fenced for another epoch, and there are records; nothing was changed.
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
        """Write down what became of runs, and drop notes that were delivered; pass over ids that are no record's.

        Return the slot's revision as `Reserved` does.

        STARTED: RUNNING (STOPPING stays), no longer fresh; if it was, its outcome is a success. FAILED: a fresh record
        goes, with the error as its outcome, and with its notes; another one is FAILING, or goes if it was STOPPING.
        ENDED: the record and its notes go; if it was fresh, its outcome is the report's error, or a success.

        Raises:
            Fenced: as `reserve`.
        """

    def where(self, slot: Slot) -> str:
        """Return where the records of a slot are, for people."""

    # -- for both ------------------------------------------------------------------------------

    def watch(self, timeout: float) -> Collection[Slot]:
        """Wait at most `timeout` seconds for signals; return the slots that have changed (none: time is up, or `wake`).

        Signals are hints: they may be lost, late, repeated. The first call subscribes, and returns at once.
        """

    def wake(self) -> None:
        """Make a `watch` under way, or the next one, return at once. Any thread may call this."""

    def close(self) -> None:
        """Let go of every connection. May be called twice."""
