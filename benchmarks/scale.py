"""Costs that grow with a keyspace: server time per task, handover by messages in moved slots, workers, slots."""

from __future__ import annotations

import tempfile
import time

from benchmarks import crowd, handover
from benchmarks.app import SIDES
from benchmarks.crowd import SOLO
from benchmarks.idle import BREATH
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.throughput import prepared, send_many
from benchmarks.workers import running, stamps
from celery_sticky.testing.slot_log import SlotLog
from celery_sticky.testing.waiting import wait_until

KEYS = 100
TIMEOUT = 120.0
SHOWN = (crowd.REQUESTS, "commands/s, those inside scripts too", "server CPU %", "CPU of a worker %", "MiB a worker")


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure all four."""
    cost(server, report, 4000 if quick else 16_000)
    handover.run(server, report, quick=quick)
    crowd.run(server, report, quick=quick)
    by_slots(server, report, quick=quick)


def cost(server: Server, report: Report, tasks: int) -> None:
    """Measure the server's processor time: it has one thread, so this bounds the tasks a second of all workers."""
    table = Table(
        f"Server time of a no-op task ({SOLO.name}, {KEYS} keys)",
        ["worker", "publish, CPU µs", "run, CPU µs", "one core is enough for, tasks/s"],
    )
    spent = {}
    for side in SIDES:
        publish, work = cost_of(server, side, tasks)
        spent[side] = publish + work
        table.rows.append([side, f"{publish * 1e6:.0f}", f"{work * 1e6:.0f}", f"{1 / spent[side]:,.0f}"])
    report.tables.append(table)
    report.ratio("server_cpu_a_task", spent["sticky"] / spent["stock"])


def cost_of(server: Server, side: str, tasks: int) -> tuple[float, float]:
    """Return the server's processor seconds for a publish, and for the rest of a task."""
    with prepared(server, side) as app:
        before = server.cpu()
        send_many(app, tasks, KEYS)
        sent = server.cpu()
    with running(server, side, SOLO):
        # Polled rarely: each poll costs server time.
        wait_until(lambda: server.left(side) == 0, TIMEOUT, "all are run", interval=0.5)
        done = server.cpu()
    return (sent - before) / tasks, (done - sent) / tasks


def by_slots(server: Server, report: Report, *, quick: bool) -> None:
    """Measure an idle worker that owns all slots."""
    table = Table(f"An idle worker ({SOLO.name}) by its number of slots", ["slots", *SHOWN])
    for slots in (256, 1024) if quick else (256, 1024, 4096):
        figures = idle_with(server, slots, 10.0 if quick else 20.0)
        table.rows.append([f"{slots:,}", *(figures[name] for name in SHOWN)])
    report.tables.append(table)


def idle_with(server: Server, slots: int, seconds: float) -> dict[str, str]:
    """Return the cost of a worker with this many slots, all empty."""
    with tempfile.TemporaryDirectory() as folder, prepared(server, "sticky", slots):
        path = stamps(folder)
        with running(server, "sticky", SOLO, log=path, conf={"sticky_slots": slots}) as worker:
            wait_until(lambda: len(SlotLog(path).events()) >= slots, TIMEOUT, "all slots open")
            time.sleep(BREATH)
            return crowd.idle(server, [worker], seconds)
