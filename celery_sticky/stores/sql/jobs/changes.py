"""The changes of jobs by one transaction, which has locked their slots. They are written at its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql import Database, Runner
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.text import chunks, marks, portions, values
from celery_sticky.stores.jobs import JobAddress, JobRecord
from celery_sticky.stores.sql.jobs.answers import START, Answer, write_answers
from celery_sticky.stores.sql.jobs.rows import COLUMNS, Stored, changing, columns, inserted, slot_name, stored
from celery_sticky.stores.sql.jobs.slots import Slots


class Changes:
    """Reads and changes jobs. A change of a job gives its slot the next revision."""

    def __init__(self, inside: Runner, dialect: Dialect, scope: bytes) -> None:
        self.inside, self.dialect, self.scope = inside, dialect, scope
        self.slots = Slots(inside, dialect, scope)
        self._read: dict[str, Stored] = {}
        """Id → the row as it was read."""
        self._now: dict[str, Stored | None] = {}
        """Id → the row as it will be; None: it is removed."""
        self._others: dict[str, dict[str, Any]] = defaultdict(dict)
        """Id → values of columns that no record has, or that were not read."""
        self._answers: list[Answer] = []

    # -- Reading -------------------------------------------------------------------------------

    def read_ids(self, ids: Iterable[str]) -> None:
        """Read the jobs with these ids, in any slot."""
        for some in chunks(sorted({job_id.encode() for job_id in ids})):
            self._take(f"t.scope = %s AND t.id IN {marks(len(some))}", [self.scope, *some])

    def read_addresses(self, addresses: Collection[JobAddress]) -> None:
        """Read the jobs of these slots, names and keys."""
        one = "(t.scope = %s AND t.slot = %s AND t.name = %s AND t.job_key = %s)"
        locked = [address for address in addresses if self.slots.has(address[0])]
        for some in chunks(sorted({(slot_name(slot), name.encode(), key.encode()) for slot, name, key in locked})):
            self._take(" OR ".join([one] * len(some)), [part for place in some for part in (self.scope, *place)])

    def by_id(self, job_id: str) -> Stored | None:
        """Return a job that was read, or None if there is none (any more)."""
        return self._now.get(job_id)

    def jobs(self) -> list[Stored]:
        """Return all jobs that were read and are still there, in slots that are locked.

        A slot without a row had no jobs when it was to be locked. It may have some now, which are not ours to change.
        """
        return [job for job in self._now.values() if job is not None and self.slots.has(job.record.slot)]

    def in_slot(self, slot: Slot, job_id: str) -> Stored | None:
        """Return a job that was read if it is in this slot."""
        found = self._now.get(job_id)
        return found if found is not None and found.record.slot == slot and self.slots.has(slot) else None

    def at(self, address: JobAddress) -> Stored | None:
        """Return the job at an address that was read, or None if there is none (any more)."""
        return next((one for one in self.jobs() if (one.record.slot, one.record.name, one.record.key) == address), None)

    # -- Changing ------------------------------------------------------------------------------

    def add(self, job: Stored) -> None:
        """Add a job."""
        version = self.slots.revise(job.record.slot)
        self._now[job.record.id] = replace(job, record=replace(job.record, version=version))

    def put(self, record: JobRecord, **others: Any) -> None:
        """Change a job; `others` are values of columns that no record has, or that were not read."""
        before = self._now[record.id]
        assert before is not None
        if record == before.record and not others:
            return
        record = replace(record, version=self.slots.revise(record.slot))
        self._now[record.id] = replace(before, record=record)
        self._others[record.id] |= others

    def save(self, job_id: str, at: tuple[int, int], saved: bytes) -> None:
        """Store a checkpoint: no change that gives a revision."""
        before = self._now[job_id]
        assert before is not None
        self._now[job_id] = replace(before, saved_at=at)
        self._others[job_id] |= {"saved": saved, "saved_attempt": at[0], "saved_number": at[1]}

    def tell(self, record: JobRecord, error: str, ttl: float | None = None) -> None:
        """Keep the outcome of a fresh job's start; `ttl` is in seconds (None: as its dispatch wanted)."""
        job = self._now[record.id]
        if record.fresh and job is not None:
            self.answer(Answer(START, record.id, job.identity, error, job.outcome_ttl if ttl is None else ttl))

    def answer(self, answer: Answer) -> None:
        """Keep an answer."""
        self._answers.append(answer)

    def remove(self, record: JobRecord, error: str, ttl: float | None = None) -> None:
        """Remove a job with its notes. If it is fresh, its outcome is `error`: see `tell`."""
        self.tell(record, error, ttl)
        self._now[record.id] = None
        self.slots.revise(record.slot)

    # -- Writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Write everything."""
        removed = [job_id for job_id, now in self._now.items() if now is None]
        self._delete([job_id for job_id in removed if job_id in self._read])
        self._insert([now for job_id, now in self._now.items() if now is not None and job_id not in self._read])
        self._update()
        if self._answers:
            write_answers(self.inside, self.dialect, self.scope, self._answers, self.slots.now)
        self.slots.write(self._vacated({self._read[job_id].record.slot for job_id in removed if job_id in self._read}))

    def _take(self, where: str, said: Sequence[Any]) -> None:
        for row in self.inside.rows(f"SELECT {columns(COLUMNS, 't')} FROM {{job}} t WHERE {where}", said):
            found = stored(row)
            self._read.setdefault(found.record.id, found)
            self._now.setdefault(found.record.id, found)

    def _delete(self, ids: Sequence[str]) -> None:
        for some in chunks(sorted((self.scope, job_id.encode()) for job_id in ids)):
            self.inside.run(*self.dialect.delete("{job}", ("scope name", "id key"), some))
            self.inside.run(*self.dialect.delete("{job_note}", ("scope name", "job key"), some))

    def _insert(self, jobs: Sequence[Stored]) -> None:
        rows = [inserted(self.scope, one) for one in jobs]
        for some in portions(rows, lambda row: len(row["payload"])):
            text, said = values([list(row.values()) for row in some])
            self.inside.run(f"INSERT INTO {{job}} ({', '.join(some[0])}) VALUES {text}", said)

    def _update(self) -> None:
        """Update rows; those that get the same values, in one statement."""
        groups: dict[tuple[tuple[str, Any], ...], list[bytes]] = defaultdict(list)
        for job_id, before in self._read.items():
            now = self._now[job_id]
            if now is None or (now == before and job_id not in self._others):
                continue
            old, new = changing(before.record), changing(now.record)
            changed = {name: value for name, value in new.items() if value != old[name]} | self._others[job_id]
            groups[tuple(changed.items())].append(job_id.encode())
        for values_, ids in groups.items():
            said = [value for _, value in values_]
            changes = ", ".join(f"{name} = %s" for name, _ in values_)
            for some in chunks(sorted(ids)):
                statement = f"UPDATE {{job}} SET {changes} WHERE scope = %s AND id IN {marks(len(some))}"
                self.inside.run(statement, [*said, self.scope, *some])

    def _vacated(self, slots: Collection[Slot]) -> list[KeyPlace]:
        """Return the places among these slots that have no jobs any more."""
        places = {slot_name(slot): slot for slot in slots if isinstance(slot, KeyPlace)}
        for some in chunks(sorted(places)):
            statement = f"SELECT DISTINCT slot FROM {{job}} WHERE scope = %s AND slot IN {marks(len(some))}"
            for (name,) in self.inside.rows(statement, [self.scope, *some]):
                del places[bytes(name)]
        return list(places.values())


@contextmanager
def changes_in(database: Database, scope: bytes, slots: Collection[Slot] = ()) -> Iterator[Changes]:
    """Begin a transaction that has these slots for itself; at its end, what it has changed is written."""
    with database.transaction() as inside:
        changes = Changes(inside, database.dialect, scope)
        if slots:
            changes.slots.lock(slots)
        yield changes
        changes.write()
