"""The cost of an idle worker: commands at the server, processor time, memory.

Celery's defaults are on, including gossip and heartbeats. Our side adds 256 slots, lease heartbeats and sweeps.
"""

from __future__ import annotations

import time

from benchmarks.app import SIDES
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.throughput import prepared
from benchmarks.workers import POOLS, Pool, running

OURS = {"info"}
"""Commands that the measurement itself sends."""
BREATH = 5.0
"""Seconds that a worker gets to become idle."""


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure each pool."""
    table = Table(
        "An idle worker",
        ["pool", "worker", "requests/s", "commands/s, those inside scripts too", "server CPU %", "worker CPU %", "MiB"],
    )
    for pool in [pool for pool in POOLS if not quick or pool.name == "prefork -c2"]:
        seen = {side: measure(server, pool, side, 10.0 if quick else 20.0, table) for side in SIDES}
        report.ratio(f"idle_requests_{pool.slug}", seen["sticky"][0] / seen["stock"][0])
        report.ratio(f"memory_{pool.slug}", seen["sticky"][1] / seen["stock"][1])
    table.notes.append("MiB: proportional set size of all processes of the worker, before its first task.")
    report.tables.append(table)


def measure(server: Server, pool: Pool, side: str, seconds: float, table: Table) -> tuple[float, float]:
    """Add a row; return requests a second and MiB."""
    with prepared(server, side), running(server, side, pool, flags=(), level="INFO") as worker:
        worker.wait_ready()
        time.sleep(BREATH)
        before = server.commands()
        start, server_cpu, cpu = time.monotonic(), server.cpu(), worker.cpu()
        time.sleep(seconds)
        took, server_cpu, cpu = time.monotonic() - start, server.cpu() - server_cpu, worker.cpu() - cpu
        delta = {name: n - before.get(name, 0) for name, n in server.commands().items() if name not in OURS}
        requests = server.requests(seconds) / seconds
        memory = worker.pss()
    often = sorted(((n, name) for name, n in delta.items() if n), reverse=True)[:8]
    table.notes.append(f"{pool.name}, {side}: " + ", ".join(f"{name} {n / took:.1f}/s" for n, name in often))
    cells = [f"{requests:.1f}", f"{sum(delta.values()) / took:.1f}"]
    table.rows.append(
        [pool.name, side, *cells, f"{server_cpu / took * 100:.2f}", f"{cpu / took * 100:.2f}", f"{memory:.0f}"]
    )
    return requests, memory
