"""Helpers of the contract's tests: a job, and the steps of its life."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import (
    Admission,
    DispatchOutcome,
    JobRecord,
    JobState,
    JobStore,
    NewJob,
    Report,
    RunResult,
)
from celery_sticky.stores.notes import FailedDelivery, Fate
from celery_sticky.testing.store_contract.server import TIMEOUT

OpenJobs = Callable[..., JobStore]
T = TypeVar("T")

SLOT, EPOCH = 3, 7
"""The slot of jobs and the epoch of its owner, unless a test says otherwise."""
SUCCESS = DispatchOutcome()
DECADES = 1e9
"""A period, in seconds, that no test sees end: one begins in 2001, the next in 2033."""


def job(id: str = "d1", name: str = "feed", key: str = "k", slot: Slot = SLOT, payload: bytes = b'{"n":1}') -> NewJob:  # noqa: A002
    """Return a job to dispatch."""
    return NewJob(name, key, slot, id, payload)


def ask(
    store: JobStore, new: NewJob, *, max_queued: int = 1000, ttl: float = 60
) -> tuple[Admission, DispatchOutcome | None]:
    """Dispatch a job."""
    return store.admit(new, max_queued=max_queued, outcome_ttl=ttl)


def queued(store: JobStore, new: NewJob | None = None, *, ttl: float = 60) -> NewJob:
    """Dispatch a job that must be admitted."""
    new = new or job()
    assert ask(store, new, ttl=ttl) == (Admission.ADMITTED, None)
    return new


def reserved(store: JobStore, *ids: str, slot: Slot = SLOT, epoch: int = EPOCH) -> None:
    """Open the slot and reserve the start of jobs."""
    store.open(slot, epoch)
    assert set(store.reserve(slot, epoch, "w1", ids).attempts) == set(ids)


def starting(store: JobStore, new: NewJob | None = None) -> NewJob:
    """Have a job admitted and its start reserved."""
    new = queued(store, new)
    reserved(store, new.id, slot=new.slot)
    return new


def settle(
    store: JobStore,
    *reports: Report,
    notes: Collection[str] = (),
    failed: Sequence[FailedDelivery] = (),
    slot: Slot = SLOT,
    epoch: int = EPOCH,
    ttl: float = 60,
) -> None:
    """Report on runs."""
    store.settle(slot, epoch, reports, notes, failed, outcome_ttl=ttl)


def started(job_id: str = "d1") -> Report:
    """Return the report of a start that succeeded."""
    return Report(job_id, RunResult.STARTED)


def failed(job_id: str = "d1", error: str = "boom") -> Report:
    """Return the report of a start that raised, or of a run that ended with an error."""
    return Report(job_id, RunResult.FAILED, error)


def ended(job_id: str = "d1", error: str = "") -> Report:
    """Return the report of a run that ended."""
    return Report(job_id, RunResult.ENDED, error)


def running(store: JobStore, new: NewJob | None = None) -> NewJob:
    """Create a job that is admitted and started."""
    new = starting(store, new)
    settle(store, started(new.id), slot=new.slot)
    return new


def failing(store: JobStore, new: NewJob | None = None) -> NewJob:
    """Create a job that ran and then failed."""
    new = running(store, new)
    settle(store, failed(new.id), slot=new.slot)
    return new


def stopping(store: JobStore, new: NewJob | None = None, *, fresh: bool = False) -> NewJob:
    """Create a job that was told to stop; `fresh`: before its start settled."""
    new = starting(store, new) if fresh else running(store, new)
    assert store.stop(new.slot, new.name, new.key)
    assert record(store, new.id).state is JobState.STOPPING
    return new


def record(store: JobStore, job_id: str = "d1") -> JobRecord:
    """Return the record with this id."""
    (found,) = [record for record in store.records() if record.id == job_id]
    return found


def ids(store: JobStore, slot: Slot | None = None) -> set[str]:
    """Return the ids of the records."""
    return {record.id for record in store.records(slot=slot)}


def revision(store: JobStore, slot: Slot = SLOT) -> int:
    """Return the revision of a slot."""
    seen = store.look({slot: 0})
    return seen[slot].revision if slot in seen else 0


def note(store: JobStore, payload: bytes = b"{}", *, to: NewJob | None = None, limit: int = 1000) -> Fate:
    """Send a note to a job."""
    to = to or job()
    return store.notify(to.slot, to.name, to.key, payload, limit=limit)


def notes(store: JobStore, slot: Slot = SLOT) -> list[bytes]:
    """Return the payloads of the waiting notes, oldest first."""
    seen = store.look({slot: 0})
    return [note.payload for note in seen[slot].notes] if slot in seen else []


def at_once(open_store: OpenJobs, verbs: Sequence[Callable[[JobStore], T]]) -> list[T]:
    """Run these calls at the same time, each with a client of its own; return their results."""
    clients = [open_store() for _ in verbs]
    line = threading.Barrier(len(verbs))

    def run(client: JobStore, verb: Callable[[JobStore], T]) -> T:
        line.wait(TIMEOUT)
        return verb(client)

    with ThreadPoolExecutor(len(verbs)) as threads:
        return list(threads.map(run, clients, verbs))
