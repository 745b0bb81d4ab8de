"""What the scripts of the job store reply, as the values of its contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery_sticky.errors import Fenced
from celery_sticky.slots import KeyPlace, Slot, parse_slot
from celery_sticky.stores.jobs import Admission, DispatchOutcome, JobCounts, JobGroup, JobRecord, JobState, SlotJobs
from celery_sticky.stores.notes import Note


def text(reply: bytes | None) -> str | None:
    """Return a reply that is text, or None."""
    return None if reply is None else reply.decode()


def admission(reply: Any) -> tuple[Admission, DispatchOutcome | None]:
    """Return the answer to a dispatch, and its outcome if that is known."""
    answer, error = reply
    return Admission(answer.decode()), None if error is None else DispatchOutcome(error.decode())


def check(fence: bytes | None) -> None:
    """Raise `Fenced` if the reply names a fence that refuses the request."""
    if fence is not None:
        raise Fenced(int(fence), "")


def slot(text: bytes) -> Slot:
    """Return a slot."""
    found = parse_slot(text.decode())
    if found is None:
        raise ValueError(f"{text!r} is not a slot")
    return found


def place(text: bytes) -> KeyPlace:
    """Return the place of a key."""
    found = slot(text)
    if not isinstance(found, KeyPlace):
        raise ValueError(f"{text!r} is not the place of a key")
    return found


def record(fields: list[Any]) -> JobRecord:
    """Return the record with these fields."""
    name, key, where, job_id, payload, state, fresh, attempt, epoch, worker, error, created, version, *later = fields
    generation, saved, *counts, retry_at = later  # some are absent in records of older releases
    durable, failures, strikes, apart = (int(field or 0) for field in counts)
    return JobRecord(
        name=name.decode(),
        key=key.decode(),
        slot=slot(where),
        id=job_id.decode(),
        payload=payload,
        state=JobState(state.decode()),
        fresh=fresh == b"1",
        attempt=int(attempt),
        epoch=int(epoch),
        worker=worker.decode(),
        error=error.decode(),
        created=float(created),
        version=int(version),
        generation=int(generation or 0),
        saved=saved,
        durable=durable == 1,
        failures=failures,
        strikes=strikes,
        apart=apart == 1,
        retry_at=float(retry_at or 0),
    )


def counts(pages: Sequence[Sequence[Any]]) -> JobCounts:
    """Return the jobs counted in these pages. A job that is in several of them counts once."""
    groups: dict[tuple[bytes, ...], JobGroup] = {}
    seen: set[bytes] = set()
    for _, *found in pages:
        for *facts, name, key, ids in found:
            new = set(ids) - seen
            seen |= new
            one = groups.get(tuple(facts)) or _group(*facts, name, key)
            groups[tuple(facts)] = replace(one, count=one.count + len(new))
    return JobCounts([group for group in groups.values() if group.count], pages[-1][0])


def _group(where: bytes, *facts: bytes) -> JobGroup:
    state, worker, epoch, failures, apart, name, key = (fact.decode() for fact in facts)
    slot = int(where) if where else None
    return JobGroup(0, slot, JobState(state), worker, int(epoch), int(failures), apart == "1", name, key)


def slot_jobs(revision: bytes, records: Sequence[JobRecord], waiting: Sequence[Any]) -> SlotJobs:
    """Return what is stored for a slot."""
    by_id = {record.id: record for record in records}
    found, more = [], False
    for job_id, count, entries, counted in waiting:
        job, failed = by_id[job_id.decode()], dict(zip(counted[::2], counted[1::2], strict=True))
        for entry, (_, payload) in entries:
            note = Note(f"{entry.decode()} {job.id}", job.name, job.key, payload, int(failed.get(entry, 0)))
            found.append((int(entry.partition(b"-")[0]), note))
        more |= len(entries) < count
    found.sort(key=lambda note: note[0])
    return SlotJobs(int(revision), tuple(records), tuple(note for _, note in found), more)
