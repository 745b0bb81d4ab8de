"""Memory that keys leave behind: a worker's memory over many tasks, and the keys that remain in Redis."""

from __future__ import annotations

import re
import time
from collections import Counter

from benchmarks.backlog import Copier
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.throughput import prepared, send_many
from benchmarks.workers import Pool, Worker, running

TASKS, KEYS = 1_000_000, 100_000
STEPS = 10
POOL = Pool("threads", 8)


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Run tasks with keys that repeat, then as many tasks with a distinct key each."""
    tasks, keys = (40_000, 4000) if quick else (TASKS, KEYS)
    sizes = measure(server, report, tasks, keys)
    report.ratio("memory_growth", sizes[-1] / sizes[1])
    distinct = 100_000 if quick else TASKS
    sizes = measure(server, report, distinct, distinct)
    report.ratio("memory_growth_distinct_keys", sizes[-1] / sizes[1])


def measure(server: Server, report: Report, tasks: int, keys: int) -> list[float]:
    """Run the tasks in ten steps; return the worker's memory in MiB before the first and after each."""
    step = tasks // STEPS
    table = Table(
        f"Memory over {tasks:,} no-op tasks of {keys:,} keys ({POOL.name})",
        ["tasks done", "worker RSS MiB", "keys in Redis", "server MiB"],
    )
    with prepared(server, "sticky") as app, running(server, "sticky", POOL) as worker:
        sizes = []
        copier = Copier(server, "noop")
        for n in range(STEPS + 1):
            if not n:
                send_many(app, 256, 256)  # does the one-time setup
            elif keys == tasks:
                copier.fill(step)
            else:
                send_many(app, step, keys, start=(n - 1) * step)
            _wait_done(server, worker)
            sizes.append(worker.rss())
            used = server.client.info("memory")["used_memory"] / 2**20
            table.rows.append([f"{n * step:,}", f"{sizes[-1]:.1f}", str(server.client.dbsize()), f"{used:.1f}"])
        table.notes.append("Keys left in Redis: " + _left(server))
    report.tables.append(table)
    return sizes


def _wait_done(server: Server, worker: Worker) -> None:
    while server.left("sticky"):
        worker.check_alive()
        time.sleep(0.05)
    time.sleep(1.0)


def _left(server: Server) -> str:
    kinds = Counter(re.sub(r"\d+", "<slot>", name) for name in server.client.scan_iter(count=1000))
    return ", ".join(f"{count} `{kind}`" for kind, count in kinds.most_common())
