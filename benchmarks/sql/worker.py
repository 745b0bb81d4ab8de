"""How many no-op tasks a worker runs a second, beside the alternatives: a backlog is loaded, then a worker starts.

Counted are the tasks that have run. All sides take turns in random order within a round.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from kombu import Connection

from benchmarks.report import Report, Table, spread
from benchmarks.server import Server
from benchmarks.sql.engines import Engines, note_settings, opened, redis_settings
from benchmarks.sql.options import SECONDS, Options
from benchmarks.sql.peers import on_pgqueuer, on_procrastinate
from benchmarks.sql.sides import Side, on_database, on_rabbitmq, on_redis, on_sqlalchemy
from benchmarks.workers import Pool, Worker

ROUNDS = 2
KEYS = 100
TIMEOUT = 120.0
THREADS, SOLO, PREFORK = Pool("threads", 8), Pool("solo", 1), Pool("prefork", 2)
POOLS = (THREADS, SOLO, PREFORK)
ASYNCIO = Pool("asyncio", 8)
"""What procrastinate and pgqueuer run: one event loop."""
LEAST = 20
"""Tasks that have run when the measurement begins."""


@dataclass(slots=True)
class Cell:
    """One row of the table, measured in each round."""

    side: Side
    pool: Pool
    keys: int = KEYS
    rates: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    """Microseconds of the worker's processor time for a task."""
    server: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return self.side.name if self.keys > 1 else f"{self.side.name}: one key"


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Measure every cell once per round."""
    redis = redis_settings(server, options)
    with opened(options) as engines:
        ours, others = _sides(server, engines, options)
        cells = _cells(ours, others, list(_peers(engines)), options.only)
        for number in range(options.rounds_or(1 if quick else ROUNDS)):
            for cell in random.sample(cells, len(cells)):
                measure(cell, options)
                print(f"round {number + 1}: {cell.pool.name}, {cell.name}: {cell.rates[-1]:.0f}/s", file=sys.stderr)
        report.tables += [_table(cells), _ratios(report, cells, ours, others)]
        about = (engines.postgresql.about, engines.sqlite.about, redis, "RabbitMQ: persistent messages")
        note_settings(report.tables[-2], *about)


def _sides(server: Server, engines: Engines, options: Options) -> tuple[list[Side], list[Side]]:
    """Return our sides on databases, and those that they are compared with."""
    databases = (engines.postgresql, engines.sqlite)
    ours = [on_database(engine, side) for side in ("sticky", "stock") for engine in databases]
    others = [on_redis(server, "sticky"), on_redis(server, "stock")]
    if _answers(options.rabbitmq):
        others.append(on_rabbitmq(options.rabbitmq))
    if find_spec("sqlalchemy"):
        others.append(on_sqlalchemy(engines.postgresql))
    return ours, others


def _cells(ours: Sequence[Side], others: Sequence[Side], peers: Sequence[Side], only: str) -> list[Cell]:
    cells = [Cell(side, pool) for pool in POOLS for side in (*ours, *others)]
    cells += [Cell(side, THREADS, keys=1) for side in (*ours, *others) if side.keyed]
    cells += [Cell(side, ASYNCIO) for side in peers]
    return [cell for cell in cells if re.search(only, f"{cell.pool.name}, {cell.name}")]


def _peers(engines: Engines) -> Iterator[Side]:
    if find_spec("procrastinate"):
        yield from (on_procrastinate(engines.postgresql, locked=locked) for locked in (False, True))
    if find_spec("pgqueuer") and find_spec("asyncpg"):
        yield on_pgqueuer(engines.postgresql)


def _answers(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=2.0) as connection:
            connection.connect()
    except (OSError, *Connection(url).connection_errors):
        print("no RabbitMQ answers at --sql-rabbitmq: it is left out", file=sys.stderr)
        return False
    return True


def _table(cells: Sequence[Cell]) -> Table:
    table = Table(
        f"Worker: no-op tasks, {KEYS} keys, `acks_late`",
        ["pool", "worker", "tasks/s", "worker CPU µs a task", "server CPU µs a task"],
    )
    for cell in cells:
        figures = [spread(cell.rates), spread(cell.worker), spread(cell.server) if cell.server else ""]
        table.rows.append([cell.pool.name, cell.name, *figures])
    return table


def _ratios(report: Report, cells: Sequence[Cell], ours: Sequence[Side], others: Sequence[Side]) -> Table:
    """Return how many times as many tasks our sides run as each other one with the same pool."""
    table = Table("Worker: ratios of tasks a second", ["pool", "worker", *(f"to {side.name}" for side in others)])
    for pool in POOLS:
        rates = {cell.side.slug: cell.rates for cell in cells if cell.pool == pool and cell.keys == KEYS}
        for side in (one for one in ours if one.slug in rates):
            row = []
            for other in others:
                ratios = [a / b for a, b in zip(rates[side.slug], rates.get(other.slug, ()), strict=False)]
                row.append(spread(ratios, 2) if ratios else "")
                if ratios:
                    report.ratio(f"sql_{pool.slug}_{side.slug}_to_{other.slug}", statistics.median(ratios))
            table.rows.append([pool.name, side.name, *row])
    return table


def measure(cell: Cell, options: Options) -> None:
    """Run a backlog, from the first tasks to its end or for `seconds`."""
    share = options.scale * options.seconds / SECONDS / (3 if cell.keys == 1 else 1)
    backlog = max(int(cell.side.backlog * share), 3 * LEAST)
    with tempfile.TemporaryDirectory() as folder, cell.side.loaded(backlog, cell.keys) as start:
        log = Path(folder, "runs")
        log.touch()
        with start(cell.pool, log) as worker:
            first = _wait_for(worker, log, LEAST, time.perf_counter() + TIMEOUT)
            server, cpu, begin = cell.side.server(), worker.cpu(), time.perf_counter()
            last = _wait_for(worker, log, backlog, begin + options.seconds)
            took, cpu, after = time.perf_counter() - begin, worker.cpu() - cpu, cell.side.server()
            worker.check_alive()
    if last <= first:
        raise RuntimeError(f"{cell.name}: {last} of {backlog} tasks ran:\n{worker.said}")
    cell.rates.append((last - first) / took)
    cell.worker.append(cpu / (last - first) * 1e6)
    if server is not None and after is not None:
        cell.server.append((after - server) / (last - first) * 1e6)


def _wait_for(worker: Worker, log: Path, count: int, deadline: float) -> int:
    """Wait until so many tasks have run, or for the deadline; return how many have."""
    while (there := log.stat().st_size) < count and time.perf_counter() < deadline:
        worker.check_alive()
        time.sleep(0.01)
    return there
