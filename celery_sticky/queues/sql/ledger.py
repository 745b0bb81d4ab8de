"""The ledger of runs: one row for each run that is claimed or has finished.

A claim is an INSERT that leaves a row that is there already as it is: of two workers that claim a run at once, one
waits for the other's transaction. Then the rows are read back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from celery_sticky.queues.base import Disposition, Outcome, RunClaim, Tag
from celery_sticky.queues.ledger_records import run_name, tag_of, tag_text
from celery_sticky.queues.sql.names import keyspace_name
from celery_sticky.queues.sql.settlement import Settlement
from celery_sticky.sql import Database, Runner
from celery_sticky.sql.text import chunks, values

TRIM_STEP = 1000
"""Most runs that one request forgets, but for those that finished at one time."""
KEYS = ("keyspace name", "run name")
ONE = "keyspace = %s AND run = %s"
HOLDERS = """SELECT d.keyspace, d.run, (SELECT t.holder FROM {ledger} t WHERE t.keyspace = d.keyspace AND t.run = d.run)
    FROM %s"""
INSERT = "INSERT INTO {ledger} (keyspace, run, holder, done) VALUES "
NOBODY = b""
"""The holder of a run that has finished."""
FINISH = "finish"
EFFECTS: dict[Outcome, str] = {
    **dict.fromkeys((Outcome.ACK, Outcome.DEFER, Outcome.BURY), FINISH),
    **dict.fromkeys((Outcome.UNCLAIM, Outcome.MOVE), Outcome.UNCLAIM),
    Outcome.CLAIM: Outcome.CLAIM,
}
"""What a disposition does to its run; the others do nothing to it."""

Key = tuple[bytes, bytes]
"""The primary key of a run: keyspace and name."""


class Told(NamedTuple):
    """A disposition that concerns a run."""

    key: Key
    claim: RunClaim
    disposition: Disposition

    @property
    def holder(self) -> bytes:
        """The delivery as it stands in a row."""
        return tag_text(self.disposition.tag).encode()

    @property
    def holders(self) -> list[bytes]:
        """The delivery and the earlier ones of its message, as they stand in a row."""
        return [self.holder, *(tag_text(tag).encode() for tag in self.claim.earlier)]


def settle_runs(settlement: Settlement, inside: Runner, database: Database, prefix: str, now: float) -> None:
    """Do to the ledger what dispositions say, in the transaction that holds the fences of their slots."""
    ledger = _Ledger(inside, database)
    for effects in _in_order(settlement, prefix):
        if asked := effects.get(Outcome.CLAIM):
            settlement.claims |= ledger.claim(asked)
        if given := effects.get(Outcome.UNCLAIM):
            ledger.give_back(given)
        if ended := effects.get(FINISH):
            ledger.finish({told.key for told in ended}, now)


def _in_order(settlement: Settlement, prefix: str) -> Iterator[dict[str, list[Told]]]:
    """Yield the effects on runs in batches, each by its kind; no batch has two kinds for one run.

    Nearly always it is one batch. Effects on different runs can be done in any order.
    """
    batches = defaultdict[int, dict[str, list[Told]]](dict)
    last: dict[Key, tuple[int, str]] = {}
    for step in settlement.steps:
        one, effect = step.disposition, EFFECTS.get(step.disposition.outcome)
        if one.claim is None or effect is None:
            continue
        key = (keyspace_name(one.tenure.keyspace, prefix), run_name(one.claim.run))
        number, before = last.get(key, (0, effect))
        number += before != effect
        last[key] = number, effect
        batches[number].setdefault(effect, []).append(Told(key, one.claim, one))
    yield from (batches[number] for number in sorted(batches))


class _Ledger:
    """The rows of runs. Statements take rows in the order of their keys, so that two transactions do not cross."""

    def __init__(self, inside: Runner, database: Database) -> None:
        self._inside, self._dialect = inside, database.dialect

    def claim(self, asked: Sequence[Told]) -> dict[tuple[str, Any, Tag], Tag | None]:
        """Claim runs; return the answers."""
        wanted: dict[Key, bytes] = {}
        for told in asked:
            if told.claim.once:
                wanted.setdefault(told.key, told.holder)
        known: dict[Key, bytes] = {}
        keys = sorted({told.key for told in asked})
        while True:
            self._insert([(*key, holder, None) for key, holder in sorted(wanted.items()) if key not in known], ())
            known = self._read(keys)
            if known.keys() >= wanted.keys():  # else another worker gave a claim back in between
                break
        return {
            (told.disposition.tenure.keyspace, told.disposition.tenure.slot, told.disposition.tag): _answer(told, known)
            for told in asked
        }

    def give_back(self, given: Iterable[Told]) -> None:
        """Delete the claims that these deliveries hold, or earlier ones of their messages."""
        for key, holder in sorted({(told.key, holder) for told in given for holder in told.holders}):
            self._inside.run(f"DELETE FROM {{ledger}} WHERE {ONE} AND holder = %s", [*key, holder])

    def finish(self, keys: Collection[Key], now: float) -> None:
        """Record that runs have finished."""
        self._insert([(*key, NOBODY, now) for key in sorted(keys)], ("holder", "done"))

    def _insert(self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> None:
        """Insert rows, and overwrite these columns of those that are there already."""
        for some in chunks(rows):
            text, said = values(some)
            self._inside.run(INSERT + text + self._dialect.upsert(["keyspace", "run"], columns), said)

    def _read(self, keys: Sequence[Key]) -> dict[Key, bytes]:
        """Return the holders of runs. Each row is looked up by its key, whatever the statistics of the table say."""
        found: dict[Key, bytes] = {}
        for some in chunks(keys):
            table, said = self._dialect.table("d", KEYS, some)
            for keyspace, run, holder in self._inside.rows(HOLDERS % table, said):
                if holder is not None:
                    found[bytes(keyspace), bytes(run)] = bytes(holder)
        return found


def _answer(told: Told, known: dict[Key, bytes]) -> Tag | None:
    holder = known.get(told.key)
    if holder == NOBODY:
        return None
    return tag_of(known[told.key]) if told.claim.once else told.disposition.tag


def forget_run(inside: Runner, keyspace: bytes, run: str) -> None:
    """Forget one run of a keyspace, given by its name in tables."""
    inside.run(f"DELETE FROM {{ledger}} WHERE {ONE}", [keyspace, run_name(run)])


def trim_runs(database: Database, keyspace: bytes, before: float) -> int:
    """Forget a batch of the runs that finished before a time; return how many.

    Runs that finished in one trip have one time, and are forgotten together.
    """
    old = "FROM {ledger} WHERE keyspace = %s AND done"
    last = database.rows(f"SELECT done {old} < %s ORDER BY done LIMIT 1 OFFSET {TRIM_STEP - 1}", [keyspace, before])
    if last:
        return database.run(f"DELETE {old} <= %s", [keyspace, last[0][0]])
    return database.run(f"DELETE {old} < %s", [keyspace, before])
