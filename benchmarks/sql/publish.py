"""How many messages one process sends a second: one by one, in batches of 50, by the driver and through Celery."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.app import make_app
from benchmarks.report import Report, Table, spread
from benchmarks.server import Server
from benchmarks.sql.driver import TRIP
from benchmarks.sql.engines import Engine, Engines, connected, database, note_settings, opened, redis_settings
from benchmarks.sql.messages import Copies
from benchmarks.sql.options import Options
from benchmarks.sql.sides import sqlalchemy_url
from celery_sticky import Sticky
from celery_sticky.keys import queue_name
from celery_sticky.queues.sql import publish

ROUNDS = 3
TURN = 1.0
"""Seconds of one measurement at most."""
KEYS = 100


@dataclass(slots=True)
class Sender:
    """One way of sending, measured in each round."""

    where: str
    how: str
    send: Callable[[int], None]
    """Sends `batch` messages; it gets a number that grows."""
    batch: int = 1
    server: Callable[[], float | None] = lambda: None
    rates: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        """Send for a while."""
        self.send(0)
        server, client, start, turns = self.server(), time.process_time(), time.perf_counter(), 0
        while (took := time.perf_counter() - start) < seconds:
            turns += 1
            self.send(turns)
        count = turns * self.batch
        self.rates.append(count / took)
        self.client.append((time.process_time() - client) / count * 1e6)
        after = self.server()
        if server is not None and after is not None:
            self.costs.append((after - server) / count * 1e6)


def run(server: Server, report: Report, *, quick: bool, options: Options) -> None:
    """Let every sender send once per round, in random order within the round."""
    redis = redis_settings(server, options)
    with opened(options) as engines, ExitStack() as stack:
        senders = list(_senders(stack, server, engines))
        for _ in range(options.rounds_or(1 if quick else ROUNDS)):
            for sender in random.sample(senders, len(senders)):
                sender.measure(min(options.seconds, TURN))
        table = Table(
            "Publish: one process",
            ["broker", "messages", "messages/s", "client CPU µs a message", "server CPU µs a message"],
        )
        for sender in senders:
            figures = [spread(sender.rates), spread(sender.client), spread(sender.costs) if sender.costs else ""]
            table.rows.append([sender.where, sender.how, *figures])
        note_settings(table, *(engine.about for engine in engines.all), redis)
        report.tables.append(table)


def _senders(stack: ExitStack, server: Server, engines: Engines) -> Iterator[Sender]:
    for engine in engines.all:
        yield from _on_database(stack, engine)
    server.clear()
    for side, name in (("sticky", "Celery, with keys"), ("stock", "Celery, stock")):
        app = stack.enter_context(_app(server.url, side))
        yield Sender("Redis", name, partial(_call, app.tasks["count"]), server=server.cpu)
    if find_spec("sqlalchemy"):
        engine = engines.postgresql
        app = stack.enter_context(_app(sqlalchemy_url(stack.enter_context(engine.fresh())), "stock"))
        yield Sender("Kombu SQLAlchemy, PostgreSQL", "Celery", partial(_call, app.tasks["count"]), server=engine.cpu)


def _on_database(stack: ExitStack, engine: Engine) -> Iterator[Sender]:
    url = stack.enter_context(engine.fresh())
    where, body = stack.enter_context(closing(database(url))), Copies("sticky").one("k0")
    with where.transaction():  # creates the tables, for which an outbox would wait for its own transaction
        pass
    for batch in (1, TRIP):
        send = partial(_publish, where, [body] * batch)
        yield Sender(engine.name, f"driver, {_batches(batch)}", send, batch, engine.cpu)
    keyed = stack.enter_context(_app(f"sticky+{url}", "sticky"))
    yield Sender(engine.name, "Celery, with keys", partial(_call, keyed.tasks["count"]), server=engine.cpu)
    ordinary = stack.enter_context(_app(f"sticky+{url}", "stock"))
    yield Sender(engine.name, "Celery, ordinary queue", partial(_call, ordinary.tasks["count"]), server=engine.cpu)
    if hasattr(Sticky, "outbox"):
        raw = stack.enter_context(connected(url)).raw
        send = partial(_in_transaction, raw, where.dialect.begin, keyed)
        yield Sender(engine.name, f"Celery, with keys, {TRIP} in the caller's transaction", send, TRIP, engine.cpu)


def _batches(batch: int) -> str:
    return "one by one" if batch == 1 else f"batches of {batch}"


@contextmanager
def _app(url: str, side: str) -> Iterator[Any]:
    app = make_app(url, side)
    yield app
    app.close()


def _publish(where: Any, bodies: list[bytes], turn: int) -> None:
    publish(where, queue_name("default", turn % 16), bodies)


def _call(task: Any, turn: int) -> None:
    task.apply_async((f"k{turn % KEYS}",))


def _in_transaction(raw: Any, begin: str, app: Any, turn: int) -> None:
    with closing(raw.cursor()) as cursor:
        cursor.execute(begin)
        with Sticky.of(app).outbox(raw):
            for number in range(TRIP):
                _call(app.tasks["count"], turn + number)
        cursor.execute("COMMIT")
