"""How many no-op tasks a worker runs a second: a backlog is published, then a worker starts and processes it.

A run is measured from the first acknowledged task to the last one, or for `SECONDS`, whichever is shorter.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.app import make_app
from benchmarks.report import Report, Table, spread
from benchmarks.server import SLOTS, Server
from benchmarks.workers import POOLS, Pool, running
from celery_sticky.cli.session import Session
from celery_sticky.stores.first_document import write_first

SECONDS = 8.0
BACKLOG = {"stock": 4000, "sticky": 16000}
MANY = 100_000
TIMEOUT = 60.0


@dataclass(slots=True)
class Cell:
    """One figure of the table, measured in each round."""

    pool: Pool
    side: str
    keys: int
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Microseconds of the worker's processor time per task."""


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure every cell once per round, in random order within the round."""
    cells = [Cell(pool, side, keys) for pool in POOLS for side, keys in _sides(pool, quick=quick)]
    for _ in range(1 if quick else 5):
        for cell in random.sample(cells, len(cells)):
            rate, cpu = measure(server, cell, seconds=3.0 if quick else SECONDS, scale=0.25 if quick else 1.0)
            cell.rates.append(rate)
            cell.cpu.append(cpu)
    report.tables.append(_table(cells))
    for pool in POOLS:
        stock, *ours = [cell for cell in cells if cell.pool == pool]
        for cell in ours:
            suffix = {100: "", 1: "_1key"}.get(cell.keys, "_manykeys")
            ratio = statistics.median(a / b for a, b in zip(cell.rates, stock.rates, strict=True))
            report.ratio(f"throughput_{pool.slug}{suffix}", ratio)


def _sides(pool: Pool, *, quick: bool) -> list[tuple[str, int]]:
    some = [("stock", 100), ("sticky", 100), ("sticky", 1)]
    return some if quick and pool.kind != "prefork" else [*some, ("sticky", MANY)]


def _table(cells: list[Cell]) -> Table:
    table = Table(
        "Throughput: no-op tasks a second, `acks_late` on either side",
        ["pool", "keys", "stock", "celery-sticky", "ratio", "worker CPU µs a task: stock", "celery-sticky"],
    )
    for cell in cells:
        if cell.side == "stock":
            stock = cell
            continue
        ratio = [a / b for a, b in zip(cell.rates, stock.rates, strict=True)]
        keys = f"{cell.keys:,}" if cell.keys < MANY else "one a task"
        row = [cell.pool.name, keys, spread(stock.rates), spread(cell.rates), spread(ratio, 2)]
        table.rows.append([*row, spread(stock.cpu), spread(cell.cpu)])
    return table


def measure(server: Server, cell: Cell, *, seconds: float, scale: float) -> tuple[float, float]:
    """Return tasks a second and the worker's CPU microseconds per task."""
    backlog = int(BACKLOG[cell.side] * scale)
    with prepared(server, cell.side) as app:
        send_many(app, backlog, cell.keys)
    with running(server, cell.side, cell.pool) as worker:
        deadline = time.monotonic() + TIMEOUT
        while (first := server.left(cell.side)) == backlog:
            worker.check_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no task ran in time:\n{worker.log.read_text()[-3000:]}")
            time.sleep(0.02)
        start, cpu = time.perf_counter(), worker.cpu()
        left = first
        while left and time.perf_counter() - start < seconds:
            time.sleep(0.02)
            left = server.left(cell.side)
        took, cpu = time.perf_counter() - start, worker.cpu() - cpu
        worker.check_alive()
    done = first - left
    return done / took, cpu / done * 1e6


@contextmanager
def prepared(server: Server, side: str, slots: int = SLOTS) -> Iterator[Any]:
    """Empty the server, write the first document, and yield an app to publish with."""
    server.clear()
    app = make_app(server.url, side)
    if side == "sticky":
        with Session(app) as session:
            write_first(session.store("default"), slots)
    try:
        yield app
    finally:
        app.close()


def send_many(app: Any, count: int, keys: int, start: int = 0, task: str = "noop") -> None:
    """Publish no-op tasks for the keys in turn."""
    noop = app.tasks[task]
    with app.producer_or_acquire() as producer:
        for i in range(start, start + count):
            noop.apply_async((f"k{i % keys}",), producer=producer)
