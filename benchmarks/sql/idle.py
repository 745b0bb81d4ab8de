"""What an idle worker costs: statements at the database, and processor time. Celery's defaults are on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.app import SIDES, STATEMENTS
from benchmarks.idle import BREATH, OURS
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.sql.engines import Engines, note_settings, opened, redis_settings
from benchmarks.sql.latency import WAYS, places
from benchmarks.sql.options import Options
from benchmarks.sql.worker import THREADS
from benchmarks.workers import Address, Worker, running

OFTEN = 6
"""Kinds of statements that a note names."""


@dataclass(slots=True)
class Readings:
    """What has been counted so far."""

    at: float
    worker: float
    server: float | None
    statements: Counter[str]


@dataclass(slots=True)
class Idle:
    """An idle worker and how to read what it has cost."""

    name: str
    worker: Worker
    server: Callable[[], float | None]
    statements: Callable[[], Counter[str]]

    def read(self) -> Readings:
        """Return the present readings."""
        return Readings(time.monotonic(), self.worker.cpu(), self.server(), self.statements())


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Measure the workers of all brokers at the same time: first those with keys, then those without."""
    table = Table(
        f"An idle worker ({THREADS.name})", ["broker", "worker", "statements/s", "worker CPU %", "server CPU %"]
    )
    redis = redis_settings(server, options)
    with opened(options) as engines:
        for side in reversed(SIDES):
            with ExitStack() as stack:
                workers = _start(stack, server, engines, side)
                for one in workers:
                    one.worker.wait_ready()
                time.sleep(BREATH)
                before = [one.read() for one in workers]
                time.sleep(3 * options.seconds)
                for one, then in zip(workers, before, strict=True):
                    _add(table, one, side, then, one.read())
        note_settings(table, *(engine.about for engine in engines.servers), redis)
    report.tables.append(table)


def _start(stack: ExitStack, server: Server, engines: Engines, side: str) -> list[Idle]:
    servers = {engine.name: engine.cpu for engine in engines.servers}
    workers = []
    for place in places(stack, server, engines, side):
        how = running(Address(place.url), side, THREADS, flags=(), level="INFO", statements=True)
        worker = stack.enter_context(how)
        log = worker.log.with_name(STATEMENTS)
        counted = partial(_commands, server) if place.name == "Redis" else partial(_kinds, log)
        workers.append(Idle(place.name, worker, servers.get(place.name, server.cpu), counted))
    return workers


def _commands(server: Server) -> Counter[str]:
    return Counter({name: count for name, count in server.commands().items() if name not in OURS})


def _kinds(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def _add(table: Table, one: Idle, side: str, before: Readings, after: Readings) -> None:
    took = after.at - before.at
    sent = after.statements - before.statements
    shares = [(after.worker - before.worker) / took * 100]
    if after.server is not None and before.server is not None:
        shares.append((after.server - before.server) / took * 100)
    way = WAYS[side] if side == "sticky" or one.name != "Redis" else "stock"
    cells = [f"{share:.2f}" for share in shares] + [""] * (2 - len(shares))
    table.rows.append([one.name, way, f"{sent.total() / took:.1f}", *cells])
    often = ", ".join(f"{kind} {n / took:.1f}/s" for kind, n in sent.most_common(OFTEN))
    table.notes.append(f"{one.name}, {way}: {often}")
