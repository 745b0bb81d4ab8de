"""The time from before a publish to inside the task on a database, with and without notifications, on idle workers.

    python -m benchmarks.sql_latency sticky+postgresql://postgres@127.0.0.1/bench

It needs an empty database and a quiet machine. Both workers run at the same time and get tasks in random order, each
with tables of its own, which are left behind. The pauses between tasks decide what is measured: an idle worker that
polls does so the less often the longer it was idle.
"""

from __future__ import annotations

import argparse
import random
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.app import make_app
from benchmarks.latency import KEYS, _wait_stamps, quantile
from benchmarks.report import Table
from benchmarks.workers import POOLS, running

SIDES = {"notified": True, "polling": False}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql_latency", description=__doc__)
    parser.add_argument("url", help="a database: sticky+postgresql://…, sticky+mysql://… or sticky+sqlite:///…")
    parser.add_argument("--samples", type=int, default=500, help="tasks of each side")
    parser.add_argument("--pause", type=float, nargs=2, default=(0.02, 2.0), help="seconds between two: least and most")
    parser.add_argument("--pool", choices=[pool.slug for pool in POOLS], default="threads8")
    options = parser.parse_args()
    pool = next(pool for pool in POOLS if pool.slug == options.pool)
    table = Table("From before the publish to inside the task, ms", ["worker", "p50", "p99", "max"])
    for side, seen in measure(options.url, pool, options.samples, options.pause).items():
        table.rows.append([side, *(f"{ms:.1f}" for ms in (quantile(seen, 0.5), quantile(seen, 0.99), max(seen)))])
    print(table.markdown())


def measure(url: str, pool: Any, samples: int, pause: tuple[float, float]) -> dict[str, list[float]]:
    """Return the latencies of each side, in milliseconds."""
    server: Any = SimpleNamespace(url=url)
    confs = {
        side: {"broker_transport_options": {"table_prefix": f"{side}_", "notify": notify}}
        for side, notify in SIDES.items()
    }
    apps = {side: make_app(url, "sticky") for side in SIDES}
    for side, app in apps.items():
        app.conf.update(confs[side])
    with (
        running(server, "sticky", pool, conf=confs["notified"], name="notified") as notified,
        running(server, "sticky", pool, conf=confs["polling"], name="polling") as polling,
    ):
        workers, warm = {"notified": notified, "polling": polling}, 10
        for n in range(samples + warm):
            for side in random.sample(list(SIDES), 2):
                apps[side].tasks["stamp"].apply_async((f"k{n % KEYS}", time.monotonic_ns()))
                if n < warm:
                    _wait_stamps(workers[side], n + 1)
                time.sleep(random.uniform(*pause))
        return {side: _wait_stamps(worker, samples + warm)[warm:] for side, worker in workers.items()}


if __name__ == "__main__":
    main()
