"""How the tables of PostgreSQL grow: each task is inserted, fetched and deleted, and autovacuum does its work."""

from __future__ import annotations

import time

from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.sql.driver import TRIP, acked, open_slots
from benchmarks.sql.engines import connected, database, note_settings, opened
from benchmarks.sql.messages import Copies
from benchmarks.sql.options import Options
from celery_sticky.keys import queue_name
from celery_sticky.queues.base import Disposition, Want
from celery_sticky.queues.sql import SqlQueues, publish
from celery_sticky.sql.link import Link

STEPS = 5
SLOTS = 5
SIZES = """
SELECT pg_table_size('sticky_message'), pg_indexes_size('sticky_message'), SUM(pg_total_relation_size(relid))::bigint,
    SUM(n_dead_tup)::bigint, SUM(autovacuum_count)::bigint
FROM pg_stat_user_tables WHERE starts_with(relname, 'sticky_')
"""


class Flow:
    """Messages that come and go, in trips of a fixed size."""

    def __init__(self, url: str) -> None:
        self._sender, self._where = database(url), database(url)
        self._queues = SqlQueues(self._where, prefix="sticky")
        self._wants = [Want(tenure, TRIP // SLOTS) for tenure in open_slots(self._queues, SLOTS)]
        self._bodies = [Copies("sticky").one("k0")] * TRIP
        self._done: list[Disposition] = []
        self.tasks = 0

    def until(self, tasks: int) -> None:
        """Go on until so many tasks are done."""
        while self.tasks < tasks:
            publish(self._sender, queue_name("default", self.tasks // TRIP % SLOTS), self._bodies)
            self.trip()

    def trip(self) -> bool:
        """Settle and fetch once; return whether anything is left."""
        fetched = self._queues.fetch(self._wants, self._done, time.time())
        self.tasks += len(self._done)
        self._done = [acked(one) for one in fetched.deliveries]
        return bool(self._done)

    def end(self) -> None:
        """Empty the queues."""
        while self.trip():
            pass
        self._queues.close()
        self._sender.close()


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Do the tasks in steps, and then vacuum."""
    table = Table(
        f"PostgreSQL after {options.tasks:,} tasks",
        ["tasks done", "s", "`message` MB", "its index MB", "all our tables MB", "dead rows", "autovacuums"],
    )
    with opened(options) as engines:
        engine = engines.postgresql
        with engine.fresh() as url, connected(url) as link:
            flow, begin = Flow(url), time.monotonic()
            for step in range(1, STEPS + 1):
                flow.until(options.tasks * step // STEPS)
                _add(table, f"{flow.tasks:,}", time.monotonic() - begin, link)
            flow.end()
            begin = time.monotonic()
            link.run("VACUUM")
            _add(table, "all, and a `VACUUM`", time.monotonic() - begin, link)
        note_settings(table, engine.about)
    table.notes.append(f"Inserted, fetched and deleted by the driver, {TRIP} a trip.")
    report.tables.append(table)


def _add(table: Table, name: str, seconds: float, link: Link) -> None:
    message, index, every, dead, vacuums = link.rows(SIZES)[0]
    sizes = (f"{size / 1e6:.1f}" for size in (message, index, every))
    table.rows.append([name, f"{seconds:.1f}", *sizes, f"{dead:,}", str(vacuums)])
