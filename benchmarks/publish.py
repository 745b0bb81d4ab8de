"""The sender's cost of a key: `apply_async` of a keyed and of an unkeyed task, in turn, on one server."""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import Any

from celery import Celery

from benchmarks.report import Report, Table
from benchmarks.server import Server
from celery_sticky import Sticky

CALLS = 200
"""Publishes of each task per round."""
KEYS = [f"tenant-{n}" for n in range(1000)]


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Compare the two."""
    server.clear()
    app, unkeyed, keyed = make_tasks(server.url)
    seen = measure({"unkeyed": unkeyed, "keyed": keyed}, 15 if quick else 60)
    app.close()
    ratios = [ours / theirs for ours, theirs in zip(seen["keyed"], seen["unkeyed"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    table = Table("Publish", ["task", "median µs an `apply_async`", "keyed / unkeyed (middle half of the rounds)"])
    for name, seconds in seen.items():
        ratio = f"{middle:.3f} ({low:.3f} to {high:.3f})" if name == "keyed" else ""
        table.rows.append([name, f"{statistics.median(seconds) * 1e6:.1f}", ratio])
    report.tables.append(table)
    report.ratio("publish", middle)


def make_tasks(url: str) -> tuple[Any, Any, Any]:
    """Return an app, a task without a key and a task with one; each publishes to its own queues."""
    app = Celery("publish", broker=url, set_as_current=False)
    Sticky(app)

    @app.task(ignore_result=True, shared=False)
    def unkeyed(tenant: str, page: int = 1) -> None: ...

    @app.task(key="tenant", ignore_result=True, shared=False)
    def keyed(tenant: str, page: int = 1) -> None: ...

    app.finalize()
    return app, app.tasks[unkeyed.name], app.tasks[keyed.name]


def publish(task: Any, keys: list[str]) -> float:
    """Return the average seconds of one publish."""
    start = time.perf_counter()
    for key in keys:
        task.apply_async((key,))
    return (time.perf_counter() - start) / len(keys)


def measure(tasks: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Publish in short turns, in random order within each round, so a slow moment affects both."""
    seen: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in range(rounds + 2):
        batch = random.choices(KEYS, k=CALLS)
        for name in random.sample(list(tasks), len(tasks)):
            gc.collect()
            seconds = publish(tasks[name], batch)
            if round_number >= 2:  # the first publishes open connections and use slots for the first time
                seen[name].append(seconds)
    return seen
