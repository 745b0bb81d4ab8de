"""The rows of the slots that one transaction has locked: fences, revisions and signals."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from celery_sticky.errors import Fenced
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql import Runner
from celery_sticky.sql.bell import JOBS, keyspace_topic
from celery_sticky.sql.dialects.base import Dialect, joined
from celery_sticky.sql.text import chunks, marks
from celery_sticky.stores import job_rules
from celery_sticky.stores.sql.jobs.rows import slot_name, slot_of

KEY = ("scope name", "slot slot")
CLOSED, PLACES = b"closed", b"places"
"""The rows of a keyspace in `job_space`."""
INSERT = "INSERT INTO {job_slot} (scope, slot, epoch, revision, signalled) VALUES "


@dataclass(slots=True)
class SlotRow:
    """The row of a slot."""

    epoch: int = 0
    revision: int = 0
    """The revision before this transaction."""
    signalled: float = 0.0
    revised: int = 0
    """Its next revision; 0: nothing has changed."""
    signals: bool = False
    """Whether this transaction signals it."""


class Slots:
    """The slots of one keyspace, in one transaction. The methods say in which order to lock."""

    def __init__(self, inside: Runner, dialect: Dialect, scope: bytes) -> None:
        self._inside, self._dialect, self._scope = inside, dialect, scope
        self._rows: dict[Slot, SlotRow] = {}
        self._last: int | None = None
        """The highest revision of any place of a key; None: its row is not locked."""
        self._written_last = 0
        self._now: float | None = None

    @property
    def now(self) -> float:
        """The database's clock during this transaction, perhaps before it got its locks, in seconds since the epoch."""
        if self._now is None:
            self._now = float(self._inside.rows(f"SELECT {self._dialect.clock}")[0][0])
        return self._now

    def lock_admissions(self) -> bool:
        """Lock the keyspace's admissions, before anything else; return whether it is closed."""
        statement = f"SELECT t.value FROM {{job_space}} t WHERE t.scope = %s AND t.part = %s{self._dialect.update}"
        rows = self._inside.rows(statement, [self._scope, CLOSED])
        if not rows:
            end = self._dialect.upsert(["scope", "part"], ["part"])
            said = [self._scope, CLOSED, 0, self._scope, PLACES, 0]
            self._inside.run(f"INSERT INTO {{job_space}} (scope, part, value) VALUES {marks(3)}, {marks(3)}{end}", said)
            rows = self._inside.rows(statement, [self._scope, CLOSED])
        return bool(rows[0][0])

    def close(self, *, closed: bool) -> None:
        """Close or open the keyspace, whose admissions are locked."""
        statement = "UPDATE {job_space} SET value = %s WHERE scope = %s AND part = %s"
        self._inside.run(statement, [int(closed), self._scope, CLOSED])

    def lock(self, slots: Collection[Slot], *, places: bool | None = None) -> None:
        """Lock the rows of slots, all at once; then the common row of places, if `places` is true.

        `places` is None: only if one of the slots is a place of a key with jobs.
        """
        for some in chunks(sorted((self._scope, name) for name in {slot_name(slot) for slot in slots})):
            rows, said = joined(self._dialect, "{job_slot}", KEY, some)
            columns = f"t.slot, t.epoch, t.revision, t.signalled, {self._dialect.clock}"
            statement = f"SELECT {columns} FROM {rows} ORDER BY t.slot{self._dialect.update}"
            for slot, epoch, revision, signalled, now in self._inside.rows(statement, said):
                self._rows[slot_of(slot)] = SlotRow(epoch, revision, signalled)
                self._now = float(now)
        if any(isinstance(slot, KeyPlace) for slot in self._rows) if places is None else places:
            statement = f"SELECT t.value FROM {{job_space}} t WHERE t.scope = %s AND t.part = %s{self._dialect.update}"
            found = self._inside.rows(statement, [self._scope, PLACES])
            self._last = self._written_last = found[0][0] if found else 0

    def has(self, slot: Slot) -> bool:
        """Return whether a locked slot has a row: only then it has jobs."""
        return slot in self._rows

    def check(self, slot: Slot, epoch: int) -> None:
        """Check the fence of a slot.

        Raises:
            Fenced: it is fenced for another epoch. The place of a key without jobs never is.
        """
        row = self._rows.get(slot)
        if row is None and isinstance(slot, KeyPlace):
            return
        fence = row.epoch if row is not None else 0
        if fence != epoch:
            raise Fenced(fence, "")

    def raise_fence(self, slot: Slot, epoch: int) -> None:
        """Lock a slot and fence it. If it has no row, it gets one, unless it is the place of a key.

        Raises:
            Fenced: a higher epoch has fenced it.
        """
        self.lock([slot], places=False)
        if slot not in self._rows:
            if isinstance(slot, KeyPlace):
                return
            make_rows(self._inside, self._dialect, self._scope, [slot])
            self.lock([slot], places=False)  # another epoch may have fenced it meanwhile
        if self._rows[slot].epoch > epoch:
            raise Fenced(self._rows[slot].epoch, "")
        statement = "UPDATE {job_slot} SET epoch = %s WHERE scope = %s AND slot = %s"
        self._inside.run(statement, [epoch, self._scope, slot_name(slot)])

    def revise(self, slot: Slot, *, again: bool = False) -> int:
        """Return the next revision of a slot: one for all changes of this transaction, or another if `again` is set."""
        row = self._rows.setdefault(slot, SlotRow())
        if again or not row.revised:
            last = row.revised or row.revision
            if isinstance(slot, KeyPlace):  # all places share one counter, because a forgotten one may come back
                assert self._last is not None
                last = self._last
            row.revised = job_rules.revision(last, self.now)
            if isinstance(slot, KeyPlace):
                self._last = row.revised
        return row.revised

    def revision(self, slot: Slot, known: int) -> int:
        """Return the revision of a slot now, if it was the known one before, else 0."""
        row = self._rows.get(slot)
        if row is None or row.revision != known:
            return 0
        return row.revised or row.revision

    def signal(self, slot: Slot) -> None:
        """Signal a slot, if it has a row."""
        if slot in self._rows:
            self._rows[slot].signals = True

    def write(self, vacated: Iterable[KeyPlace]) -> None:
        """Write the rows that have changed, and delete those of places without jobs."""
        for place in vacated:
            self._rows.pop(place, None)
            self._inside.run("DELETE FROM {job_slot} WHERE scope = %s AND slot = %s", [self._scope, slot_name(place)])
        changed = {slot_name(slot): row for slot, row in self._rows.items() if row.revised or row.signals}
        for some in chunks(sorted(changed)):
            self._upsert({name: changed[name] for name in some})
        if self._last != self._written_last and self._last is not None:
            statement = "UPDATE {job_space} SET value = %s WHERE scope = %s AND part = %s"
            self._inside.run(statement, [self._last, self._scope, PLACES])

    def _upsert(self, rows: dict[bytes, SlotRow]) -> None:
        texts: list[str] = []
        said: list[object] = []
        for name, row in rows.items():
            # The time of a signal is read here: a transaction may have waited for its locks.
            texts.append(f"(%s, %s, %s, %s, {self._dialect.clock if row.signals else '%s'})")
            said += (self._scope, name, row.epoch, row.revised or row.revision)
            said += () if row.signals else (row.signalled,)
        end = self._dialect.upsert(["scope", "slot"], ["revision", "signalled"])
        signals = any(row.signals for row in rows.values())
        ring = [keyspace_topic(JOBS, self._scope)] if signals else ()
        self._inside.run(INSERT + ", ".join(texts) + end, said, ring=ring)


def make_rows(runner: Runner, dialect: Dialect, scope: bytes, slots: Collection[Slot]) -> None:
    """Insert rows of slots that have none, before any is locked: who waits for a row must not hold a later one.

    No two rows that are made have the same time of a signal, for `upsert` knows the primary key alone.
    """
    for some in chunks(sorted(slot_name(slot) for slot in slots)):
        where = f"WHERE scope = %s AND slot IN {marks(len(some))}"
        there = {bytes(row[0]) for row in runner.rows(f"SELECT slot FROM {{job_slot}} {where}", [scope, *some])}
        if missing := [name for name in some if name not in there]:
            text = ", ".join([f"(%s, %s, 0, 0, -{dialect.clock})"] * len(missing))
            end = dialect.upsert(["scope", "slot"], ["scope"])
            runner.run(INSERT + text + end, [part for name in missing for part in (scope, name)])
