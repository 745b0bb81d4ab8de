"""The rows of the table `fence`: the tenure that each slot is fenced for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from celery_sticky.errors import Fenced
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.sql.apart import check_number
from celery_sticky.sql import Database, Runner
from celery_sticky.sql.dialects.base import Dialect, joined
from celery_sticky.sql.text import as_bytes, chunks, values

DELIVERIES = 1 << 36
"""The numbers of tags that one opening has. Openings are numbered in these steps."""
NOBODY = -1
"""The epoch of a fence that was never set."""
COLUMNS = ("queue", "epoch", "incarnation", "opens", "opening")
INSERT = f"INSERT INTO {{fence}} ({', '.join(COLUMNS)}) VALUES "


class Fence(NamedTuple):
    """A row."""

    queue: int
    epoch: int
    incarnation: bytes
    opens: int
    opening: int
    """Grows with each opening, by any worker: it tells two openings of equal tenures apart."""

    def refusal(self, tenure: Tenure) -> Fenced | None:
        """Return why this fence cannot be replaced by one for a tenure, or None if it can."""
        if self.epoch != tenure.epoch:
            refused = self.epoch > tenure.epoch
        else:
            refused = self.incarnation != tenure.incarnation.encode() or self.opens >= tenure.open_count
        return Fenced(self.epoch, self.incarnation.decode(errors="replace")) if refused and self.opening else None

    def after(self, tenure: Tenure) -> Fence:
        """Return the fence that an opening for this tenure sets."""
        opening = self.opening + DELIVERIES
        return Fence(self.queue, tenure.epoch, tenure.incarnation.encode(), tenure.open_count, opening)


def read_fences(runner: Runner, dialect: Dialect, queues: Iterable[int], lock: str = "") -> dict[int, Fence]:
    """Return the fences of queues; `lock` is the dialect's `share` or `update`. Locks are taken in one order.

    Raises:
        SlotBroken: a row is unusable.
    """
    found: dict[int, Fence] = {}
    for some in chunks(sorted(set(queues))):
        rows, said = joined(dialect, "{fence}", ["queue"], [(queue,) for queue in some])
        columns = ", ".join(f"t.{column}" for column in COLUMNS)
        for row in runner.rows(f"SELECT {columns} FROM {rows} ORDER BY t.queue{lock}", said):
            queue, epoch, incarnation, opens, opening = row
            for column, value in (("epoch", epoch), ("opens", opens), ("opening", opening)):
                check_number("fence", queue, column, value)
            found[queue] = Fence(queue, epoch, as_bytes(incarnation), opens, opening)
    return found


def make_fences(database: Database, queues: Iterable[int]) -> None:
    """Insert the missing fences of slots, by themselves: a transaction that inserts and locks could block another."""
    missing = sorted(set(queues) - set(read_fences(database, database.dialect, queues)))
    for some in chunks(missing):
        text, said = values([Fence(queue, NOBODY, b"", 0, 0) for queue in some])
        database.run(INSERT + text + database.dialect.or_nothing, said)


def write_fences(runner: Runner, fences: Sequence[Fence], end: str) -> None:
    """Write fences; `end` is the dialect's `upsert`."""
    for some in chunks(sorted(fences)):
        text, said = values(some)
        runner.run(INSERT + text + end, said)
