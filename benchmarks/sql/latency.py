"""From before the publish to inside the task, on idle workers of all brokers, which run at the same time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.app import make_app
from benchmarks.latency import KEYS, LEAST, MOST, quantile, wait_stamps
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.sql.engines import Engines, note_settings, opened, redis_settings
from benchmarks.sql.options import Options
from benchmarks.sql.sides import write_document
from benchmarks.sql.worker import THREADS
from benchmarks.workers import Address, Worker, running

WARM = 10
"""Tasks of each worker that are not counted."""
WAYS = {"sticky": "with keys", "stock": "ordinary queue"}


@dataclass(frozen=True, slots=True)
class Place:
    """An empty broker."""

    name: str
    url: str


@dataclass(slots=True)
class Idle:
    """A worker that waits, and the task that it is sent."""

    name: str
    worker: Worker
    task: Any


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Measure the workers with keys, then those of ordinary queues."""
    table = Table(
        f"Latency of an idle worker ({THREADS.name}): before the publish to inside the task, ms",
        ["broker", "task", "p50", "p99", "max"],
    )
    redis = redis_settings(server, options)
    with opened(options) as engines:
        for side, way in WAYS.items():
            with ExitStack() as stack:
                for name, seen in measure(stack, server, engines, side, options.samples).items():
                    figures = (quantile(seen, 0.5), quantile(seen, 0.99), max(seen))
                    table.rows.append([name, way, *(f"{ms:.1f}" for ms in figures)])
        note_settings(table, *(engine.about for engine in engines.servers), redis)
    table.notes.append(
        f"{options.samples} samples for each worker, {LEAST * 1000:.0f} to {MOST * 1000:.0f} ms apart. "
        "Ordinary queue on Redis: stock Celery."
    )
    report.tables.append(table)


def places(stack: ExitStack, server: Server, engines: Engines, side: str) -> Iterator[Place]:
    """Yield an empty broker of each kind; Redis comes last."""
    server.clear()
    urls = {engine.name: f"sticky+{stack.enter_context(engine.fresh())}" for engine in engines.servers}
    for name, url in {**urls, "Redis": server.url}.items():
        if side == "sticky":
            write_document(url)
        yield Place(name, url)


def measure(stack: ExitStack, server: Server, engines: Engines, side: str, samples: int) -> dict[str, list[float]]:
    """Return the latencies of each broker, in milliseconds."""
    workers = []
    for place in places(stack, server, engines, side):
        app = make_app(place.url, side)
        stack.callback(app.close)
        worker = stack.enter_context(running(Address(place.url), side, THREADS))
        workers.append(Idle(place.name, worker, app.tasks["stamp"]))
    for number in range(samples + WARM):
        for one in random.sample(workers, len(workers)):
            one.task.apply_async((f"k{number % KEYS}", time.monotonic_ns()))
            if number < WARM:
                wait_stamps(one.worker, number + 1)
            time.sleep(random.uniform(LEAST, MOST) / len(workers))
    return {one.name: wait_stamps(one.worker, samples + WARM)[WARM:] for one in workers}
