"""Big bodies, and many deferred messages that come due at once: speed, memory, and the longest server command."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.app import SIDES
from benchmarks.backlog import Copier
from benchmarks.report import Report, Table
from benchmarks.server import SLOTS, Server
from benchmarks.throughput import prepared
from benchmarks.workers import Pool, running
from celery_sticky.testing.waiting import wait_until

MEGABYTE = 1_000_000
POOLS = (Pool("prefork", 2), Pool("threads", 8))
KEYS = 20
TIMEOUT = 300.0
LEAD = 30.0
"""Seconds until deferred messages come due: long enough to write them all and start the worker."""
SPELL = 10.0
"""Seconds for which tasks are counted once they are due."""


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure both."""
    bodies(server, report, {1: 20, 10: 8} if quick else {1: 200, 10: 40})
    deferred(server, report, {"stock": 10_000, "sticky": 100_000} if quick else {"stock": 100_000, "sticky": 1_000_000})


def bodies(server: Server, report: Report, counts: dict[int, int]) -> None:
    """Measure a backlog of big messages, by the size of an argument in megabytes."""
    table = Table(
        f"Big bodies: a backlog over {KEYS} keys, published before the worker starts",
        ["argument", "tasks", "pool", "worker", "tasks/s", "longest command at the server, ms", "worker, MiB at most"],
    )
    for size, count in counts.items():
        for pool in POOLS:
            rates = {}
            for side in random.sample(SIDES, len(SIDES)):
                rates[side], row = _bodies_of(server, side, pool, size, count)
                table.rows.append([f"{size} MB", str(count), pool.name, side, f"{rates[side]:.1f}", *row])
            report.ratio(f"bodies_{size}mb_{pool.slug}", rates["sticky"] / rates["stock"])
    report.tables.append(table)


def _bodies_of(server: Server, side: str, pool: Pool, size: int, count: int) -> tuple[float, list[str]]:
    with prepared(server, side) as app:
        for i in range(count):
            app.tasks["carry"].apply_async((f"k{i % KEYS}", "x" * (size * MEGABYTE)))
    server.watch_slow()
    with running(server, side, pool) as worker:
        wait_until(lambda: server.left(side) < count, TIMEOUT, "the first task is run", interval=0.02)
        start, first = time.perf_counter(), server.left(side)
        wait_until(lambda: server.left(side) == 0, TIMEOUT, "all are run", interval=0.02)
        took = time.perf_counter() - start
        peak = worker.peak_rss()
    return first / took, [f"{server.slowest():.1f}", f"{peak:.0f}"]


def deferred(server: Server, report: Report, counts: dict[str, int]) -> None:
    """Measure many messages that come due at once."""
    pool = Pool("threads", 8)
    table = Table(
        f"Deferred messages that come due at once ({pool.name})",
        ["worker", "messages", "tasks/s once due", "longest command at the server, ms", "worker, MiB at most"],
    )
    for side in SIDES:
        table.rows.append([side, f"{counts[side]:,}", *_deferred_of(server, side, pool, counts[side])])
    table.notes.append("Stock Celery holds messages with an ETA in the worker's memory, and so gets fewer of them.")
    report.tables.append(table)


def _deferred_of(server: Server, side: str, pool: Pool, count: int) -> list[str]:
    with prepared(server, side) as app:
        if side == "stock":
            due = time.time() + LEAD + count / 1000  # stock Celery fetches them one by one
            eta = datetime.fromtimestamp(due, UTC)
            for i in range(count):
                app.tasks["noop"].apply_async((f"k{i % KEYS}",), eta=eta)
        else:
            Copier(server, "noop").fill(count)
            due = time.time() + LEAD
            _defer_all(server.client, due)
    with running(server, side, pool) as worker:
        taken = "unacked" if side == "stock" else f"sticky.default.{SLOTS - 1}:fence"
        wait_until(lambda: server.client.exists(taken), TIMEOUT, "the worker fetches", interval=0.2)
        assert time.time() < due, "the messages came due before the worker was ready"
        server.watch_slow()
        time.sleep(due - time.time())
        wait_until(lambda: server.left(side) + server.deferred() < count, TIMEOUT, "one is run", interval=0.2)
        start, first = time.perf_counter(), server.left(side) + server.deferred()
        time.sleep(SPELL)
        left = server.left(side) + server.deferred()
        rate = (first - left) / (time.perf_counter() - start)
        peak = worker.peak_rss()
    return [f"{rate:.0f}", f"{server.slowest():.1f}", f"{peak:.0f}"]


def _defer_all(client: Any, due: float) -> None:
    """Turn every waiting message into a deferred one, in the driver's own format."""
    for slot in range(SLOTS):
        queue = f"sticky.default.{slot}"
        members = [f"{number:016d}:0:{body}" for number, body in enumerate(client.lrange(queue, 0, -1))]
        if members:
            client.zadd(f"{queue}:deferred", dict.fromkeys(members, due))
            client.delete(queue)
