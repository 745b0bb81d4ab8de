"""What owners look at: the jobs and notes of slots, and the places of keys that have jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql import Database
from celery_sticky.sql.text import chunks, marks
from celery_sticky.stores.jobs import SEEN_RECORDS, JobPlaces, JobRecord, SlotJobs
from celery_sticky.stores.sql.jobs.notes import Waiting, waiting
from celery_sticky.stores.sql.jobs.rows import WHOLE, columns, slot_name, slot_of, stored
from celery_sticky.stores.sql.jobs.slots import PLACES

NOTHING = SlotJobs(0, (), ())
# One statement, so that no revision is newer than the records. Notes that come later give the slot a later revision.
SLOTS = (
    f"SELECT s.slot, s.revision, {columns(WHOLE, 'j')} FROM {{job_slot}} s "
    "LEFT JOIN {job} j ON j.scope = s.scope AND j.slot = s.slot WHERE s.scope = %s AND s.slot IN "
)


class Seen:
    """The verbs for one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """See `JobStore.look`."""
        revisions = self._revisions(known)
        changed = [slot for slot, revision in known.items() if revisions.get(slot, 0) != revision]
        chosen = self._first(changed)
        found = self._read([slot for slot in chosen if slot in revisions])
        return {slot: found.get(slot, NOTHING) for slot in chosen}

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        if self._last() == known:
            return None
        rows = self._database.rows(
            "SELECT 1, slot, revision FROM {job_slot} WHERE scope = %s AND slot >= %s AND slot < %s "
            "UNION ALL SELECT 0, part, value FROM {job_space} WHERE scope = %s AND part = %s",
            [self._scope, b"=", b">", self._scope, PLACES],
        )
        last, revisions = 0, dict[KeyPlace, int]()
        for is_place, name, revision in rows:
            slot = slot_of(name) if is_place else 0
            if isinstance(slot, KeyPlace):
                revisions[slot] = revision
            else:
                last = revision
        return JobPlaces(last, revisions)

    def _last(self) -> int:
        """Return the highest revision that any place ever had."""
        statement = "SELECT value FROM {job_space} WHERE scope = %s AND part = %s"
        rows = self._database.rows(statement, [self._scope, PLACES])
        return int(rows[0][0]) if rows else 0

    def _revisions(self, slots: Iterable[Slot]) -> dict[Slot, int]:
        found: dict[Slot, int] = {}
        for some in chunks(sorted(map(slot_name, slots))):
            statement = f"SELECT slot, revision FROM {{job_slot}} WHERE scope = %s AND slot IN {marks(len(some))}"
            found |= {
                slot_of(name): revision for name, revision in self._database.rows(statement, [self._scope, *some])
            }
        return found

    def _first(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return the first of these slots, up to that with which there are enough records."""
        chosen, seen = list[Slot](), 0
        for some in chunks(slots):
            counts = self._counts(some)
            for slot in some:
                if seen >= SEEN_RECORDS:
                    return chosen
                chosen.append(slot)
                seen += counts.get(slot, 0)
        return chosen

    def _counts(self, slots: Sequence[Slot]) -> dict[Slot, int]:
        statement = f"SELECT slot, COUNT(*) FROM {{job}} WHERE scope = %s AND slot IN {marks(len(slots))} GROUP BY slot"
        rows = self._database.rows(statement, [self._scope, *map(slot_name, slots)])
        return {slot_of(name): int(count) for name, count in rows}

    def _read(self, slots: Sequence[Slot]) -> dict[Slot, SlotJobs]:
        revisions: dict[Slot, int] = {}
        records: dict[str, JobRecord] = {}
        for some in chunks(slots):
            said = [self._scope, *map(slot_name, some)]
            for name, revision, *row in self._database.rows(SLOTS + marks(len(some)), said):
                revisions[slot_of(name)] = revision
                if row[0] is not None:
                    record = stored(tuple(row)).record
                    records[record.id] = record
        notes = waiting(self._database, self._scope, records) if records else {}
        by_slot: dict[Slot, list[JobRecord]] = {slot: [] for slot in revisions}
        for record in records.values():
            by_slot[record.slot].append(record)
        found: dict[Slot, SlotJobs] = {}
        for slot, revision in revisions.items():
            its_notes = notes.get(slot, Waiting())
            found[slot] = SlotJobs(revision, tuple(by_slot[slot]), tuple(its_notes.notes), its_notes.more)
        return found
