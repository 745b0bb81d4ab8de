"""The sides of the comparison: what a worker reads from, loaded with a backlog, and how it is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from kombu import Connection

from benchmarks.app import make_app
from benchmarks.server import SLOTS, Server
from benchmarks.sql.engines import Engine, database
from benchmarks.sql.messages import Copies
from benchmarks.throughput import prepared, send_many
from benchmarks.workers import Address, Pool, Worker, running
from celery_sticky.cli.session import Session
from celery_sticky.stores.first_document import write_first

Start = Callable[[Pool, Path], AbstractContextManager[Worker]]
"""Starts a worker whose tasks write to this file."""


@dataclass(frozen=True, slots=True)
class Side:
    """A broker with a worker."""

    name: str
    backlog: int
    """Tasks that it cannot run in much less than three seconds."""
    loaded: Callable[[int, int], AbstractContextManager[Start]]
    """Loads an empty broker with a number of tasks of a number of keys, in turn."""
    server: Callable[[], float | None] = lambda: None
    """Returns the seconds of processor time that the server has spent."""


def on_database(engine: Engine, side: str) -> Side:
    """Return our SQL path: with keys (`sticky`), or ordinary queues (`stock`)."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with engine.fresh() as url:
            if side == "sticky":
                write_document(f"sticky+{url}")
            with closing(database(url)) as where:
                Copies(side).fill(where, backlog, keys)
            yield partial(_celery, f"sticky+{url}", side)

    what = "keys" if side == "sticky" else "ordinary queue"
    return Side(f"celery-sticky, {engine.name}, {what}", 12_000, loaded, engine.cpu)


def on_redis(server: Server, side: str) -> Side:
    """Return our Redis path (`sticky`), or stock Celery on Redis (`stock`)."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with prepared(server, side) as app:
            send_many(app, backlog, keys, task="count")
        yield partial(_celery, server.url, side)

    name = "celery-sticky, Redis, keys" if side == "sticky" else "stock Celery, Redis"
    return Side(name, 12_000 if side == "sticky" else 4000, loaded, server.cpu)


def on_sqlalchemy(engine: Engine) -> Side:
    """Return stock Celery on Kombu's SQLAlchemy transport."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with engine.fresh() as url:
            address = sqlalchemy_url(url)
            app = make_app(address, "stock")
            send_many(app, backlog, keys, task="count")
            app.close()
            yield partial(_celery, address, "stock")

    return Side(f"stock Celery, Kombu SQLAlchemy, {engine.name}", 900, loaded, engine.cpu)


def on_rabbitmq(url: str) -> Side:
    """Return stock Celery on a RabbitMQ server; its queue and exchange are deleted at the end."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        conf = {"task_default_queue": f"sticky-bench-{uuid4()}"}
        app = make_app(url, "stock")
        app.conf.update(conf)
        try:
            send_many(app, backlog, keys, task="count")
            app.close()
            yield partial(_celery, url, "stock", conf=conf)
        finally:
            delete_queue(url, conf["task_default_queue"])

    return Side("stock Celery, RabbitMQ", 4000, loaded)


def delete_queue(url: str, name: str) -> None:
    """Delete a queue of RabbitMQ, and the exchange that Celery has declared for it."""
    with Connection(url) as connection, connection.channel() as channel:
        channel.queue_delete(name)
        channel.exchange_delete(name)


def write_document(url: str) -> None:
    """Write the first document of the keyspace, so that the first worker need not wait."""
    app = make_app(url, "sticky")
    with Session(app) as session:
        write_first(session.store("default"), SLOTS)
    app.close()


def sqlalchemy_url(url: str) -> str:
    """Return the URL of Kombu's SQLAlchemy transport for a database."""
    return f"sqla+{url.replace('postgresql://', 'postgresql+psycopg://', 1)}"


def _celery(url: str, side: str, pool: Pool, log: Path, *, conf: Any = None, flags: Sequence[str] | None = None) -> Any:
    quiet = {} if flags is None else {"flags": flags}
    return running(Address(url), side, pool, log=log, conf=conf, **quiet)
