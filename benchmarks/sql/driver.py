"""What the driver itself costs: each trip settles 50 messages and fetches the next 50.

It is measured on a short queue, before many waiting rows of which the database's statistics know nothing, and while
another session holds a snapshot, so that deleted rows stay.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from benchmarks.report import Report, Table, spread
from benchmarks.server import Server
from benchmarks.sql.engines import Engine, connected, database, note_settings, opened
from benchmarks.sql.messages import load
from benchmarks.sql.options import Options
from celery_sticky.queues.base import Delivery, Disposition, Opening, Outcome, Tenure, Want
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.sql import Database

TRIP = 50
"""Messages in one trip."""
ROUNDS = 3
STALE = {
    "postgresql": ("ANALYZE {message}", "ALTER TABLE {message} SET (autovacuum_enabled = off)"),
    "mysql": ("ALTER TABLE {message} STATS_AUTO_RECALC = 0",),
    "sqlite": ("ANALYZE",),
}
"""Statements after which the statistics stay those of the empty table."""
SNAPSHOT = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ",),
    "mysql": ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
    "sqlite": ("BEGIN",),
}
"""Statements that begin a transaction whose snapshot lasts."""


@dataclass(frozen=True, slots=True)
class Case:
    """The conditions of a figure."""

    name: str
    slots: int = 1
    rows: int = 0
    """Waiting rows that the statistics do not know."""
    snapshot: bool = False


@dataclass(slots=True)
class Cell:
    """One row of the table, measured in each round."""

    engine: Engine
    case: Case
    rates: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    """Microseconds of this process's processor time for a message."""
    server: list[float] = field(default_factory=list)

    def add(self, count: int, seconds: float, client: float, server: float | None) -> None:
        """Note what a number of messages has cost."""
        self.rates.append(count / seconds)
        self.client.append(client / count * 1e6)
        if server is not None:
            self.server.append(server / count * 1e6)


def cases(options: Options) -> list[Case]:
    """Return the conditions; the first is the one that the others are compared with."""
    return [
        Case("one slot"),
        Case("25 slots", slots=25),
        Case(f"one slot, {options.rows:,} rows", rows=options.rows),
        Case("one slot, snapshot held", snapshot=True),
    ]


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Measure every cell once per round, in random order within the round."""
    with opened(options) as engines:
        cells = [Cell(engine, case) for engine in engines.all for case in cases(options)]
        for _ in range(options.rounds_or(1 if quick else ROUNDS)):
            for cell in random.sample(cells, len(cells)):
                measure(cell, options)
        report.tables.append(_table(cells))
        note_settings(report.tables[-1], *(engine.about for engine in engines.all))
    _ratios(report, cells)


def _table(cells: list[Cell]) -> Table:
    table = Table(
        f"Driver: fetch and settle, {TRIP} messages a trip",
        ["database", "queue", "messages/s", "of one slot", "client CPU µs a message", "server CPU µs a message"],
    )
    for cell in cells:
        first = next(one for one in cells if one.engine is cell.engine)
        ratio = spread([a / b for a, b in zip(cell.rates, first.rates, strict=True)], 2) if cell is not first else ""
        cost = spread(cell.server, 1) if cell.server else ""
        table.rows.append([cell.engine.name, cell.case.name, spread(cell.rates), ratio, spread(cell.client, 1), cost])
    return table


def _ratios(report: Report, cells: list[Cell]) -> None:
    for cell in cells:
        first = next(one for one in cells if one.engine is cell.engine)
        if cell is not first:
            slug = "rows" if cell.case.rows else "snapshot" if cell.case.snapshot else "25slots"
            ratio = statistics.median(a / b for a, b in zip(cell.rates, first.rates, strict=True))
            report.ratio(f"sql_driver_{cell.engine.name.lower().replace(' ', '_')}_{slug}", ratio)


def measure(cell: Cell, options: Options) -> None:
    """Load an empty database and consume from it."""
    case = cell.case
    with cell.engine.fresh() as url:
        where = database(url)
        with where.transaction():  # creates the tables
            pass
        if case.rows:
            for statement in STALE[where.dialect.name]:
                where.run(statement)
        load(where, max(case.rows, options.messages), case.slots)
        settle_down(where)
        with snapshot(url) if case.snapshot else nullcontext():
            consume(cell, where, options)
        where.close()


def consume(cell: Cell, where: Database, options: Options) -> None:
    """Fetch and settle until time or messages are over."""
    queues = SqlQueues(where, prefix="sticky")
    tenures = open_slots(queues, cell.case.slots)
    wants = [Want(tenure, TRIP // len(tenures)) for tenure in tenures]
    done, count = [acked(one) for one in queues.fetch(wants, (), time.time()).deliveries], 0
    server, client, start = cell.engine.cpu(), time.process_time(), time.perf_counter()
    while done and count < options.messages - TRIP and time.perf_counter() - start < options.seconds:
        fetched = queues.fetch(wants, done, time.time())
        count += len(done)
        done = [acked(one) for one in fetched.deliveries]
    took, client = time.perf_counter() - start, time.process_time() - client
    after = cell.engine.cpu()
    cell.add(count, took, client, None if server is None or after is None else after - server)
    queues.fetch((), done, time.time())


def open_slots(queues: SqlQueues, number: int) -> list[Tenure]:
    """Open the first slots of the keyspace."""
    tenures = [Tenure("default", slot, 1, "bench", 1) for slot in range(number)]
    refused = [said for said in queues.open([Opening(one) for one in tenures]) if isinstance(said, Exception)]
    if refused:
        raise refused[0]
    return tenures


def acked(delivery: Delivery) -> Disposition:
    """Return the disposition of a message that is done."""
    return Disposition(Outcome.ACK, delivery.tenure, delivery.tag)


def settle_down(where: Database) -> None:
    """Have the database write now what it would write during the measurement."""
    if where.dialect.name == "postgresql":
        where.run("CHECKPOINT")


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot of another session: what is deleted from now on stays for it."""
    with connected(url) as link:
        kind = database(url).dialect.name
        for statement in SNAPSHOT[kind]:
            link.run(statement)
        link.rows("SELECT COUNT(*) FROM sticky_fence")
        yield
        link.run("ROLLBACK")
