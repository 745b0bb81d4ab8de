"""The time from before a publish to inside the task, on otherwise idle workers.

Both workers run at the same time and get tasks in random order, so a slow moment affects both.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.app import SIDES, make_app
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.throughput import prepared
from benchmarks.workers import POOLS, Pool, Worker, running, stamps

LEAST, MOST = 0.02, 0.1
"""Seconds between two publishes."""
KEYS = 1000


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure each pool."""
    table = Table(
        "Latency of an idle worker: before the publish to inside the task, ms",
        ["pool", "stock p50", "celery-sticky p50", "stock p99", "celery-sticky p99", "stock max", "celery-sticky max"],
    )
    samples = 100 if quick else 2000
    for pool in [pool for pool in POOLS if not quick or pool.name in ("prefork -c2", "threads -c8")]:
        seen = measure(server, pool, samples)
        p50, p99 = ([quantile(seen[side], q) for side in SIDES] for q in (0.5, 0.99))
        highest = [max(seen[side]) for side in SIDES]
        table.rows.append([pool.name, *(f"{ms:.1f}" for ms in (*p50, *p99, *highest))])
        report.ratio(f"latency_p50_{pool.slug}", p50[1] / p50[0])
        report.ratio(f"latency_p99_{pool.slug}", p99[1] / p99[0])
    table.notes.append(f"{samples} samples a side and pool, {LEAST * 1000:.0f} to {MOST * 1000:.0f} ms apart.")
    report.tables.append(table)


def measure(server: Server, pool: Pool, samples: int) -> dict[str, list[float]]:
    """Return the latencies of each side, in milliseconds."""
    with prepared(server, "sticky"), running(server, "stock", pool) as stock, running(server, "sticky", pool) as ours:
        workers = {"stock": stock, "sticky": ours}
        tasks = {side: make_app(server.url, side).tasks["stamp"] for side in SIDES}
        warm = 10
        for n in range(samples + warm):
            for side in random.sample(SIDES, 2):
                tasks[side].apply_async((f"k{n % KEYS}", time.monotonic_ns()))
                if n < warm:
                    wait_stamps(workers[side], n + 1)
                time.sleep(random.uniform(LEAST, MOST))
        seen = {side: wait_stamps(workers[side], samples + warm)[warm:] for side in SIDES}
        for task in tasks.values():
            task.app.close()
    return seen


def wait_stamps(worker: Worker, count: int) -> list[float]:
    """Wait until a worker has written so many latencies; return them in milliseconds."""
    path, deadline = stamps(worker.log.parent), time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = path.read_text().split() if Path(path).exists() else []
        if len(lines) >= count:
            return [int(line) / 1e6 for line in lines]
        worker.check_alive()
        time.sleep(0.02)
    raise RuntimeError(f"not all tasks ran within 60 s:\n{worker.log.read_text()[-3000:]}")


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value that a share `q` of the values does not exceed."""
    return statistics.quantiles(values, n=1000, method="inclusive")[int(q * 1000) - 1]
