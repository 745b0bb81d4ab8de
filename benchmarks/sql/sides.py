"""The sides of the comparison: what a worker reads from, loaded with a backlog, and how it is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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

    slug: str
    """Its name in the JSON."""
    name: str
    backlog: int
    """Tasks that it cannot run in much less than three seconds."""
    loaded: Callable[[int, int], AbstractContextManager[Start]]
    """Loads an empty broker with a number of tasks of a number of keys, in turn."""
    server: Callable[[], float | None] = lambda: None
    """Returns the seconds of processor time that the server has spent."""
    keyed: bool = False
    """Whether tasks of one key run one at a time."""


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

    keyed, slug = side == "sticky", engine.name.split()[0].lower()
    if not keyed:
        return Side(f"{slug}_ordinary", f"celery-sticky, {engine.name}, ordinary queue", 20_000, loaded, engine.cpu)
    return Side(slug, f"celery-sticky, {engine.name}, keys", 20_000, loaded, engine.cpu, keyed)


def on_redis(server: Server, side: str) -> Side:
    """Return our Redis path (`sticky`), or stock Celery on Redis (`stock`)."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with prepared(server, side) as app:
            send_many(app, backlog, keys, task="count")
        yield partial(_celery, server.url, side)

    if side == "sticky":
        return Side("redis", "celery-sticky, Redis, keys", 12_000, loaded, server.cpu, keyed=True)
    return Side("stock_redis", "stock Celery, Redis", 4000, loaded, server.cpu)


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

    return Side("kombu_sqlalchemy", f"stock Celery, Kombu SQLAlchemy, {engine.name}", 900, loaded, engine.cpu)


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

    return Side("stock_rabbitmq", "stock Celery, RabbitMQ", 4000, loaded)


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


def _celery(
    url: str, side: str, pool: Pool, log: Path, *, conf: Mapping[str, Any] | None = None
) -> AbstractContextManager[Worker]:
    return running(Address(url), side, pool, log=log, conf=conf)
