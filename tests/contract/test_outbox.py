"""`sticky.outbox`: tasks are part of the caller's transaction, on real databases with the usual libraries."""

# Celery and the libraries of databases have no types.
# mypy: disable-error-code="misc,no-any-return"

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import chain, chord, group
from celery._state import _task_stack
from harness.callers import WAYS, caller, plain
from harness.outbox import Shop
from harness.sql_servers import own_database
from kombu import Connection, Consumer, Exchange, Queue

from celery_sticky import OutboxRefused, Sticky
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.sql import Address, Database
from celery_sticky.testing.queue_steps import open_slot, take, take_all, tenure
from celery_sticky.testing.waiting import wait_until
from celery_sticky.transport.sql.outbox import OutboxTransport

Call = Callable[..., Any]
FOR_EACH = pytest.mark.parametrize(("sql_url", "way"), WAYS, indirect=["sql_url"])
ONE_EACH = pytest.mark.parametrize(
    ("sql_url", "way"),
    [("sqlite", "sqlite3"), ("postgresql", "psycopg"), ("mariadb", "pymysql")],
    indirect=["sql_url"],
)
WITH_SERVER = pytest.mark.parametrize(
    ("sql_url", "way"), [("postgresql", "psycopg"), ("mariadb", "pymysql")], indirect=["sql_url"]
)
ON_SQLITE = pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)


@pytest.fixture
def shop(on_database: dict[str, Any]) -> Iterator[Shop]:
    """An app whose broker is a database."""
    shop = Shop(**on_database)
    yield shop
    shop.close()


@pytest.fixture
def connect(sql_url: str) -> Iterator[Call]:
    """Makes connections of a caller: `connect(way)`; to another database with `url=`."""
    with ExitStack() as opened:
        yield lambda way, url=sql_url: opened.enter_context(closing(caller(way, url)))


@FOR_EACH
def test_tasks_exist_exactly_if_the_transaction_commits(shop: Shop, connect: Call, way: str) -> None:
    one = connect(way)
    for end, sent, later in ((one.rollback, [], []), (one.commit, [1, 2, 3], [4])):
        with shop.sticky.outbox(one.given):
            shop.plain.delay(1)
            shop.keyed.delay("a", 2)
            shop.app.send_task("plain", (3,), priority=9)
            shop.plain.apply_async((4,), countdown=3600)
        assert shop.sent() == shop.sent("deferred") == []
        end()
        assert (shop.sent(), shop.sent("deferred")) == (sent, later)
    assert shop.count("queue") == shop.count("binding") == 0, "a sender declares nothing"


@FOR_EACH
def test_what_a_savepoint_takes_back_is_not_sent(shop: Shop, connect: Call, way: str) -> None:
    one = connect(way)
    with shop.sticky.outbox(one.given):
        shop.plain.delay(1)
        one.execute("SAVEPOINT here")
        shop.plain.delay(2)
        one.execute("ROLLBACK TO SAVEPOINT here")
        shop.keyed.delay("a", 3)
    one.commit()
    assert shop.sent() == [1, 3]


@ONE_EACH
def test_a_canvas_is_sent_whole(shop: Shop, connect: Call, way: str) -> None:
    shop.app.conf.update(result_backend="cache+memory://", task_ignore_result=False)
    one, s = connect(way), shop.keyed.s
    with shop.sticky.outbox(one.given):
        chain(s("a", 1), s("a", 2)).delay()
        group(s(key, 3) for key in "ab").delay()
        chord([s("a", 4), s("b", 4)])(shop.plain.si(5))
    assert shop.sent() == []
    one.commit()
    assert shop.sent() == [1, 3, 3, 4, 4]


@ONE_EACH
def test_the_tasks_of_a_key_keep_the_order_of_the_block(shop: Shop, connect: Call, way: str, sql_url: str) -> None:
    one = connect(way)
    with shop.sticky.outbox(one.given):
        for n in range(50):
            shop.keyed.delay("a", n)
            shop.keyed.delay("b", n)
    one.commit()
    under = tenure(slot=shop.sticky.slot_for("a"))
    with closing(queues_of(shop, sql_url)) as queues:
        open_slot(queues, under)
        order = [d.body for d in take_all(queues, under).deliveries]
    assert [json.loads(json.loads(body)["body"])[0] for body in order] == [["a", n] for n in range(50)]
    assert shop.sent() == [n for n in range(50) for _ in "ab"]


@WITH_SERVER
def test_transactions_that_commit_in_another_order_lose_no_keyed_task(
    shop: Shop, connect: Call, way: str, sql_url: str
) -> None:
    first, second = connect(way), connect(way)
    under = tenure(slot=shop.sticky.slot_for("a"))
    with closing(queues_of(shop, sql_url)) as queues:
        open_slot(queues, under)
        for one, n in ((first, 1), (second, 2)):
            with shop.sticky.outbox(one.given):
                shop.keyed.delay("a", n)
        second.commit()
        found = [d.body for d in take(queues, under).deliveries]
        assert len(found) == 1
        first.commit()

        def came() -> bool:
            found.extend(d.body for d in take(queues, under).deliveries)
            return len(found) > 1

        wait_until(came, 20)
    assert [json.loads(json.loads(body)["body"])[0] for body in found] == [["a", 2], ["a", 1]]


@WITH_SERVER
def test_transactions_that_commit_in_another_order_lose_no_ordinary_task(
    shop: Shop, connect: Call, way: str, on_database: dict[str, Any]
) -> None:
    first, second, seen = connect(way), connect(way), list[int]()

    def came(count: int) -> bool:
        with suppress(TimeoutError):
            consumer.drain_events(timeout=0.1)
        return len(seen) >= count

    def taken(message: Any) -> None:
        seen.append(message.payload[0][0])
        message.ack()

    options = on_database["broker_transport_options"]
    with (
        Connection(on_database["broker"], transport_options=options) as consumer,
        Consumer(consumer, [Queue("celery")], on_message=taken, accept=["json"]),
    ):
        for one, n in ((first, 1), (second, 2)):
            with shop.sticky.outbox(one.given):
                shop.plain.delay(n)
        second.commit()
        wait_until(lambda: came(1), 20)
        first.commit()
        wait_until(lambda: came(2), 20)
    assert seen == [2, 1]


@FOR_EACH
def test_another_database_is_refused_by_both_names(shop: Shop, sql_url: str, way: str, tmp_path: Path) -> None:
    with ExitStack() as opened:
        if sql_url.startswith("sqlite"):
            Path(tmp_path, "other").mkdir()
            other = f"sqlite:///{tmp_path}/other/other.db"
        else:
            other = opened.enter_context(another(sql_url))
        one = opened.enter_context(closing(caller(way, other)))
        with pytest.raises(OutboxRefused) as refused, shop.sticky.outbox(one.given):
            pass
    names = [Address.parse(url).database.rpartition("/")[2] for url in (sql_url, other)]
    assert all(name in str(refused.value) for name in names), refused.value
    assert "name this database in broker_url" in str(refused.value)


@ON_SQLITE
def test_another_kind_of_database_is_refused(shop: Shop, postgresql_url: str, connect: Call) -> None:
    for way in ("psycopg", "connection"):
        with (
            pytest.raises(OutboxRefused, match=r"a postgresql database, the broker is sticky\+sqlite"),
            shop.sticky.outbox(connect(way, postgresql_url).given),
        ):
            pass


@ON_SQLITE
def test_a_database_in_memory_is_refused(shop: Shop) -> None:
    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises(OutboxRefused, match="a database in memory"),
        shop.sticky.outbox(other),
    ):
        pass


@pytest.mark.parametrize("broker", ["memory://", "redis://:s3cret@127.0.0.1:1/0"])
def test_a_broker_that_is_no_database_is_refused_with_the_remedy(broker: str) -> None:
    from celery import Celery

    sticky = Sticky(Celery("shop", broker=broker, set_as_current=False))
    with (
        closing(sqlite3.connect(":memory:")) as one,
        pytest.raises(OutboxRefused, match=r"Set broker_url to sticky\+postgresql://") as refused,
        sticky.outbox(one),
    ):
        pass
    assert "s3cret" not in str(refused.value)


@ON_SQLITE
def test_what_is_not_a_connection_is_refused(shop: Shop) -> None:
    with pytest.raises(OutboxRefused, match="str is not a connection"):
        shop.sticky.outbox("shop.db")


@ONE_EACH
def test_a_connection_without_a_transaction_is_refused(shop: Shop, sql_url: str, way: str) -> None:
    option = {"isolation_level": None} if way == "sqlite3" else {"autocommit": True}
    with closing(plain(way, sql_url, **option)) as raw, closing(raw.cursor()) as cursor:
        with pytest.raises(OutboxRefused, match="autocommit mode and has no transaction"), shop.sticky.outbox(raw):
            pass
        cursor.execute("BEGIN")
        with shop.sticky.outbox(raw):
            shop.plain.delay(1)
        cursor.execute("ROLLBACK")
    assert shop.sent() == []


@ON_SQLITE
def test_a_failed_insert_is_not_repeated(shop: Shop, sql_url: str) -> None:
    attempts: list[str] = []

    class Failing(sqlite3.Connection):
        def cursor(self, *args: Any, **kwargs: Any) -> Any:
            if shop.sticky.wiring.outboxes.current() is not None:
                attempts.append("insert")
                raise BrokerUnavailable("the connection is gone")  # Celery would send again after this one
            return super().cursor(*args, **kwargs)

    shop.app.conf.update(task_publish_retry_policy={"max_retries": 3, "interval_start": 0})
    with (
        closing(plain("sqlite3", sql_url, factory=Failing)) as raw,
        pytest.raises(Exception, match="the connection is gone"),
        shop.sticky.outbox(raw),
    ):
        shop.plain.apply_async((1,), retry=True)
    assert attempts == ["insert"]


@pytest.mark.parametrize(("sql_url", "way"), [("sqlite", "sqlite3"), ("postgresql", "psycopg")], indirect=["sql_url"])
def test_the_error_of_an_insert_is_that_of_the_library(shop: Shop, connect: Call, way: str) -> None:
    one, table = connect(way), shop.database.tables.name("message")
    with shop.sticky.outbox(one.given):
        one.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
        with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
            shop.plain.delay(1)
    one.rollback()


@pytest.mark.parametrize("sql_url", ["mariadb"], indirect=True)
def test_a_connection_with_another_default_database_may_have_the_tables_by_their_schema(
    on_database: dict[str, Any], sql_url: str, connect: Call
) -> None:
    at, options = Address.parse(sql_url), on_database["broker_transport_options"]
    named = {**options, "table_prefix": f"{at.database}.{options['table_prefix'].lower()}"}
    with another(sql_url) as other, closing(Shop(on_database["broker"], broker_transport_options=named)) as shop:
        with closing(caller("pymysql", other)) as one:
            with shop.sticky.outbox(one.given):
                shop.plain.delay(1)
            one.commit()
        assert shop.sent() == [1]


@WITH_SERVER
def test_other_threads_send_as_usual(shop: Shop, connect: Call, way: str) -> None:
    one = connect(way)
    with shop.sticky.outbox(one.given):
        thread = threading.Thread(target=shop.plain.delay, args=(1,))
        thread.start()
        thread.join()
        shop.plain.delay(2)
        assert shop.sent() == [1]
    one.rollback()


@WITH_SERVER
def test_the_innermost_block_counts_and_none_after_the_last(shop: Shop, connect: Call, way: str) -> None:
    outer, inner = connect(way), connect(way)
    box = shop.sticky.outbox(outer.given)
    with box:
        with shop.sticky.outbox(inner.given):
            shop.plain.delay(1)
        shop.plain.delay(2)
        inner.commit()
        assert shop.sent() == [1]
        with pytest.raises(OutboxRefused, match="open already"), box:
            pass
    outer.commit()
    assert shop.sent() == [1, 2]
    shop.plain.delay(3)
    assert shop.sent() == [1, 2, 3]
    with box:
        shop.plain.delay(4)
    outer.rollback()
    assert shop.sent() == [1, 2, 3]


@WITH_SERVER
def test_an_exception_in_the_block_ends_it(shop: Shop, connect: Call, way: str) -> None:
    one = connect(way)
    with suppress(KeyError), shop.sticky.outbox(one.given):
        shop.plain.delay(1)
        raise KeyError
    one.rollback()
    shop.plain.delay(2)
    assert shop.sent() == [2]


@ON_POSTGRESQL
def test_another_app_in_the_block_sends_as_usual(shop: Shop, connect: Call, on_database: dict[str, Any]) -> None:
    one = connect("psycopg")
    with closing(Shop(**on_database)) as other, shop.sticky.outbox(one.given):
        with other.sticky.outbox(connect("psycopg").given):
            shop.plain.delay(1)
            other.plain.delay(2)
        other.plain.delay(3)
        assert shop.sent() == [3]
        one.commit()
        assert shop.sent() == [1, 3]


@ON_POSTGRESQL
def test_a_block_that_another_thread_leaves_says_so(shop: Shop, connect: Call) -> None:
    box, errors = shop.sticky.outbox(connect("psycopg").given), list[Exception]()
    box.__enter__()

    def leave() -> None:
        try:
            box.__exit__(None, None, None)
        except OutboxRefused as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "left by another thread" in str(errors[0])


@ON_POSTGRESQL
def test_the_retry_of_the_task_that_runs_is_sent_at_once(shop: Shop, connect: Call) -> None:
    one, task = connect("psycopg"), shop.plain
    task.push_request(id="abc", args=(1,), kwargs={}, retries=0, called_directly=False, is_eager=False)
    _task_stack.push(task)
    try:
        with shop.sticky.outbox(one.given):
            shop.plain.delay(2)
            task.retry(throw=False, countdown=0)
    finally:
        _task_stack.pop()
        task.pop_request()
    one.rollback()
    assert shop.sent() == [1]


@ONE_EACH
def test_the_event_of_a_task_is_sent_with_it(shop: Shop, connect: Call, way: str) -> None:
    shop.app.conf.update(task_send_sent_event=True)
    one = connect(way)
    with shop.sticky.outbox(one.given):
        shop.plain.delay(1)
    assert shop.count("broadcast") == 0
    one.commit()
    ((age,),) = shop.database.rows(f"SELECT {shop.database.clock} - at FROM {{broadcast}}")
    assert -5 < age < 60


@ON_SQLITE
def test_bindings_are_not_looked_up(shop: Shop, connect: Call) -> None:
    one, topic = connect("sqlite3"), Queue("t", Exchange("news", type="topic"), "a.#")
    with shop.sticky.outbox(one.given), pytest.raises(OutboxRefused, match="exchange 'news' does not name the queue"):
        shop.plain.apply_async((1,), queue=topic)
    one.commit()
    assert shop.sent() == []


@ON_SQLITE
def test_a_task_with_an_eta_of_the_past_is_ready(shop: Shop, connect: Call) -> None:
    one = connect("sqlite3")
    with shop.sticky.outbox(one.given):
        shop.plain.apply_async((1,), eta=datetime.now(UTC) - timedelta(hours=1))
    one.commit()
    assert shop.sent() == [1]


@pytest.mark.parametrize(
    ("sql_url", "way"), [("postgresql", "session"), ("postgresql", "django")], indirect=["sql_url"]
)
def test_the_bell_rings_after_the_commit(shop: Shop, connect: Call, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[list[int]] = []
    monkeypatch.setattr(OutboxTransport, "ring", lambda transport: rung.append(shop.sent()))
    one = connect(way)
    for end, heard in ((one.rollback, []), (one.commit, [[1, 1]]), (one.commit, [[1, 1], [1, 1, 1, 1]])):
        with shop.sticky.outbox(one.given):
            shop.plain.delay(1)
            shop.plain.delay(1)
        end()
        assert rung == heard


@ON_POSTGRESQL
def test_the_end_of_a_savepoint_rings_no_bell(shop: Shop, connect: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[None] = []
    monkeypatch.setattr(OutboxTransport, "ring", lambda transport: rung.append(None))
    one = connect("session")
    with shop.sticky.outbox(one.given):
        shop.plain.delay(1)
        with one.given.begin_nested():
            one.execute("SELECT 1")
        assert rung == []
    one.commit()
    assert rung == [None]


def queues_of(shop: Shop, url: str) -> SqlQueues:
    """Return the slot queues of the app's broker."""
    prefix = shop.app.conf.broker_transport_options["table_prefix"]
    database = Database(Address.parse(url), timeout=20.0, unavailable=BrokerUnavailable, prefix=prefix)
    return SqlQueues(database, prefix="sticky")


def another(url: str) -> Any:
    """Return a database more at a server."""
    return own_database(url, "sticky_other")
