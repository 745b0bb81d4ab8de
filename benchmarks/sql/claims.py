"""The ledger of tasks that run at most once: claims of coming runs in batches of 50."""

from __future__ import annotations

import random
import time
from itertools import count

from benchmarks.report import Report, Table, spread
from benchmarks.server import Server
from benchmarks.sql.driver import ROUNDS, TRIP, Case, Cell, open_slots, settle_down
from benchmarks.sql.engines import database, note_settings, opened
from benchmarks.sql.messages import load
from benchmarks.sql.options import Options
from celery_sticky.queues import base
from celery_sticky.queues.base import Disposition, Outcome, Want
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.sql import Database


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Measure each database once per round, in random order within the round."""
    table = Table(
        f"Claims of runs, {TRIP} a trip", ["database", "claims/s", "client CPU µs a claim", "server CPU µs a claim"]
    )
    report.tables.append(table)
    if not hasattr(Outcome, "CLAIM"):
        table.notes.append("Left out: this release has no claims.")
        return
    with opened(options) as engines:
        cells = [Cell(engine, Case("claims")) for engine in engines.all]
        for _ in range(options.rounds_or(1 if quick else ROUNDS)):
            for cell in random.sample(cells, len(cells)):
                measure(cell, options)
        for cell in cells:
            cost = spread(cell.server, 1) if cell.server else ""
            table.rows.append([cell.engine.name, spread(cell.rates), spread(cell.client, 1), cost])
        note_settings(table, *(engine.about for engine in engines.all))
    table.notes.append("A trip that only claims. The trips that fetch, and that record the end, are not in the figure.")


def measure(cell: Cell, options: Options) -> None:
    """Fetch, claim and acknowledge; time the claims."""
    with cell.engine.fresh() as url:
        where = database(url)
        load(where, options.messages, 1)
        settle_down(where)
        _claim(cell, where, options)
        where.close()


def _claim(cell: Cell, where: Database, options: Options) -> None:
    queues, ids = SqlQueues(where, prefix="sticky"), count()
    wants = [Want(tenure, TRIP) for tenure in open_slots(queues, 1)]
    claimed, took, client, server = 0, 0.0, 0.0, 0.0
    done: list[Disposition] = []
    deadline = time.perf_counter() + 3 * options.seconds
    while took < options.seconds and time.perf_counter() < deadline:
        deliveries = queues.fetch(wants, done, time.time()).deliveries
        if not deliveries:
            break
        runs = [base.RunClaim(f"run-{next(ids)}.0", True) for _ in deliveries]
        asked = [
            Disposition(Outcome.CLAIM, one.tenure, one.tag, claim=run)
            for one, run in zip(deliveries, runs, strict=True)
        ]
        before, used, start = cell.engine.cpu(), time.process_time(), time.perf_counter()
        answer = queues.fetch((), asked, time.time())
        took, client = took + time.perf_counter() - start, client + time.process_time() - used
        server += (cell.engine.cpu() or 0.0) - (before or 0.0)
        claimed += len(answer.claims)
        done = [
            Disposition(Outcome.ACK, one.tenure, one.tag, claim=run) for one, run in zip(deliveries, runs, strict=True)
        ]
    queues.fetch((), done, time.time())
    cell.add(claimed, took, client, server if cell.engine.cpu() is not None else None)
