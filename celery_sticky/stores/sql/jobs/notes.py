"""The notes that wait for jobs, and how they leave: handled, or dead.

The id of a note is the revision that it gave to its slot, and the id of its job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_sticky.slots import Slot
from celery_sticky.sql import Runner
from celery_sticky.sql.link import Row
from celery_sticky.sql.text import chunks, marks, portions, values
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import SEEN_NOTES, JobAddress, JobRecord
from celery_sticky.stores.notes import FailedDelivery, Fate, Note
from celery_sticky.stores.sql.jobs.burial import Death, bury
from celery_sticky.stores.sql.jobs.changes import Changes

NoteKey = tuple[int, str]
"""The revision that a note gave to its slot, and the id of its job."""


def note_key(note_id: str) -> NoteKey | None:
    """Return what identifies a note, or None if no note has this id."""
    revision, _, job_id = note_id.partition(" ")
    return (int(revision), job_id) if revision.isascii() and revision.isdigit() and len(revision) < 19 else None


@dataclass(slots=True)
class Waiting:
    """The notes of some jobs."""

    notes: list[Note] = field(default_factory=list)
    more: bool = False
    """There are more of them."""


def waiting(runner: Runner, scope: bytes, jobs: Mapping[str, JobRecord]) -> dict[Slot, Waiting]:
    """Return the notes of jobs (by id), by their slot: in order, an equal share for each job. See `SlotJobs.notes`."""
    count = _counts(runner, scope, jobs)
    sharers = Counter(jobs[job_id].slot for job_id in count)
    share = {slot: max(1, SEEN_NOTES // number) for slot, number in sharers.items()}
    many = {job_id for job_id, number in count.items() if number > share[jobs[job_id].slot]}
    rows = [row for some in chunks(_ids(count.keys() - many)) for row in _read(runner, scope, some)]
    for job_id in many:
        rows += _read(runner, scope, [job_id.encode()], f" LIMIT {share[jobs[job_id].slot]}")
    found = {slot: Waiting(more=any(jobs[job_id].slot == slot for job_id in many)) for slot in sharers}
    for name, revision, failed, payload in sorted(rows, key=lambda row: int(row[1])):
        job = jobs[bytes(name).decode()]
        found[job.slot].notes.append(Note(f"{revision} {job.id}", job.name, job.key, bytes(payload), failed))
    return found


class Inboxes:
    """Takes in notes for jobs that were read, in a transaction."""

    def __init__(self, changes: Changes, limit: int) -> None:
        """At most `limit` notes wait for a job."""
        self._changes, self._limit = changes, limit
        self._counts = _counts(changes.inside, changes.scope, [job.record.id for job in changes.jobs()])
        self._rows: list[tuple[bytes, bytes, int, int, bytes]] = []

    def room(self, address: JobAddress) -> tuple[Fate, str]:
        """Return whether a note can be left for a job (`SENT`), and the job's id."""
        job = self._changes.at(address)
        if job is None:
            return Fate.NO_JOB, ""
        return job_rules.noted(job.record, self._counts.get(job.record.id, 0), self._limit), job.record.id

    def notify(self, address: JobAddress, payload: bytes) -> Fate:
        """Leave a note for a job; see `JobStore.notify`."""
        fate, job_id = self.room(address)
        if fate is Fate.SENT:
            revision = self._changes.slots.revise(address[0], again=True)
            self._rows.append((self._changes.scope, job_id.encode(), revision, 0, payload))
            self._counts[job_id] = self._counts.get(job_id, 0) + 1
            self._changes.slots.signal(address[0])
        return fate

    def write(self) -> None:
        """Write the notes."""
        for some in portions(self._rows, lambda row: len(row[4])):
            text, said = values(some)
            statement = f"INSERT INTO {{job_note}} (scope, job, revision, failed, payload) VALUES {text}"
            self._changes.inside.run(statement, said)


def drop(changes: Changes, slot: Slot, notes: Collection[NoteKey]) -> None:
    """Drop notes of jobs in a slot."""
    here = [(changes.scope, job_id.encode(), revision) for revision, job_id in notes if changes.in_slot(slot, job_id)]
    dropped = 0
    for some in chunks(sorted(set(here))):
        dropped += changes.inside.run(
            *changes.dialect.delete("{job_note}", ("scope name", "job key", "revision"), some)
        )
    if dropped:
        changes.slots.revise(slot)


def fail(changes: Changes, slot: Slot, failed: Sequence[FailedDelivery]) -> None:
    """Count failed deliveries of notes in a slot, and bury those that are dead."""
    keys = [(note_key(one.note), one) for one in failed]
    here = [(key, one) for key, one in keys if key is not None and changes.in_slot(slot, key[1])]
    counts = _failures(changes, {key for key, _ in here})
    before, deaths = dict(counts), list[Death]()
    for key, one in here:
        if key not in counts:
            continue
        if one.dead:
            job = changes.in_slot(slot, key[1])
            assert job is not None
            deaths.append(Death(key[0], job.record, one))
            del counts[key]
        else:
            counts[key] = max(counts[key], one.delivery)
    bury(changes, deaths)
    drop(changes, slot, [(death.revision, death.record.id) for death in deaths])
    changed = {key: count for key, count in counts.items() if count != before[key]}
    for (revision, job_id), count in sorted(changed.items()):
        statement = "UPDATE {job_note} SET failed = %s WHERE scope = %s AND job = %s AND revision = %s"
        changes.inside.run(statement, [count, changes.scope, job_id.encode(), revision])
    if changed:
        changes.slots.revise(slot)


def _failures(changes: Changes, notes: Collection[NoteKey]) -> dict[NoteKey, int]:
    """Return how many deliveries of these notes have failed; those that are gone are missing."""
    found: dict[NoteKey, int] = {}
    for some in chunks([(changes.scope, job_id.encode(), revision) for revision, job_id in sorted(notes)]):
        given, said = changes.dialect.table("d", ("scope name", "job key", "revision"), some)
        statement = (
            f"SELECT n.job, n.revision, n.failed FROM {given} JOIN {{job_note}} n "
            "ON n.scope = d.scope AND n.job = d.job AND n.revision = d.revision"
        )
        for job_id, revision, failed in changes.inside.rows(statement, said):
            found[revision, bytes(job_id).decode()] = failed
    return found


def _counts(runner: Runner, scope: bytes, jobs: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in chunks(_ids(jobs)):
        statement = (
            f"SELECT job, COUNT(*) FROM {{job_note}} WHERE scope = %s AND job IN {marks(len(some))} GROUP BY job"
        )
        found |= {bytes(job_id).decode(): int(count) for job_id, count in runner.rows(statement, [scope, *some])}
    return found


def _read(runner: Runner, scope: bytes, jobs: Sequence[bytes], end: str = "") -> list[Row]:
    where = f"WHERE scope = %s AND job IN {marks(len(jobs))} ORDER BY revision{end}"
    return runner.rows(f"SELECT job, revision, failed, payload FROM {{job_note}} {where}", [scope, *jobs])


def _ids(jobs: Iterable[str]) -> list[bytes]:
    return sorted(job_id.encode() for job_id in jobs)
