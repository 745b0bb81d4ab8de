"""What is rung on PostgreSQL: every change that others wait for, so that no look at intervals is needed."""

# Kombu has no types.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness.sql_broker import OnSql
from harness.sql_stores import InDatabase, database
from harness.statements import counted
from kombu import Connection, Consumer, Exchange, Producer, Queue

from celery_sticky.keys import queue_name
from celery_sticky.ownership.events import HeartbeatHeard
from celery_sticky.queues.sql.names import queue_number
from celery_sticky.sql.bell import DOCUMENT, HEARTBEAT, JOBS, PINS, due_topic, keyspace_topic, queue_topic
from celery_sticky.sql.ear import Hearing, hear
from celery_sticky.stores.sql import SqlStore, poller
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.stores.sql.placement import SqlPlacementStore
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.queue_steps import FIRST, bury, move, open_slot, settle, take
from celery_sticky.testing.store_contract import first_view, joined
from celery_sticky.testing.waiting import wait_until
from celery_sticky.transport.sql import looks
from celery_sticky.transport.sql.claims import Claims, Want
from celery_sticky.transport.sql.consumers import Consumers
from celery_sticky.transport.sql.deferred import defer, put_back

SCOPE = b"sticky.default"
SEVEN, EIGHT = (queue_topic(queue_number(queue_name("default", slot))) for slot in (7, 8))


@pytest.fixture
def broker(postgresql_url: str) -> Iterator[OnSql]:
    InDatabase(postgresql_url, SqlStore)
    with closing(OnSql(postgresql_url)) as broker:
        for table in ("claim", "consumer"):
            broker.database.run(f"DELETE FROM {{{table}}}")
        yield broker


@pytest.fixture
def heard(broker: OnSql) -> Iterator[Callable[..., None]]:
    """Asserts that exactly these topics were rung since the last call."""
    with closing(broker.connect()) as own, closing(hear(own, lambda: None)) as hearing:
        wait_proven(hearing)

        def topics(*expected: str) -> None:
            own.ring(["end"])
            found: list[str] = []
            wait_until(lambda: found.extend(hearing.take().topics) or "end" in found, 20)  # type: ignore[func-returns-value]
            assert set(found) == {*expected, "end"}

        yield topics


def wait_proven(hearing: Hearing | None) -> None:
    assert hearing is not None
    wait_until(lambda: hearing.proven, 20, "the ear hears itself")
    hearing.take()


def test_messages_of_slots(broker: OnSql, heard: Callable[..., None]) -> None:
    broker.publish("default", 7, b"1")
    heard(SEVEN)
    with closing(broker.driver()) as queues:
        open_slot(queues, FIRST)
        settle(queues, *[move(one, 8) for one in take(queues, FIRST).deliveries])
        heard(EIGHT)
        broker.publish("default", 7, b"2")
        heard(SEVEN)
        settle(queues, *[bury(one) for one in take(queues, FIRST).deliveries])
        heard()
        (dead,) = queues.dead("default")
        assert queues.requeue("default", dead.id)
        heard(SEVEN)
        assert not queues.requeue("default", dead.id)
        heard()


def test_messages_that_go_back_to_an_ordinary_queue(broker: OnSql, heard: Callable[..., None]) -> None:
    broker.publish("default", 7, b"1")
    consumers = [Consumers(broker.database, 15.0) for _ in range(2)]
    first, second = (Claims(broker.database, one.register()) for one in consumers)
    heard(SEVEN)
    want = Want(queue_number(queue_name("default", 7)), 1)
    (claimed,) = first.trip((), (), [want], {1: 5})
    heard()
    first.trip((), [claimed.place], (), {})
    heard(SEVEN)
    (claimed,) = second.trip((), (), [want], {1: 5})
    consumers[1].leave(second.consumer)
    heard(SEVEN)
    first.trip([claimed.place], (), (), {})
    heard()


def test_messages_with_an_eta(broker: OnSql, heard: Callable[..., None]) -> None:
    number = queue_number("work")
    defer(broker.database, number, 1.0, 0, b"1")
    heard(due_topic(number))
    assert put_back(broker.database, [number]) == 1
    heard(queue_topic(number))
    assert put_back(broker.database, [number]) == 0
    heard()


def test_changes_of_owners_pins_and_jobs(broker: OnSql, heard: Callable[..., None]) -> None:
    with (
        closing(SqlStore(database(broker.url), "default", prefix="sticky")) as store,
        closing(SqlPlacementStore(database(broker.url), "default", prefix="sticky")) as places,
        closing(SqlJobs(database(broker.url), "default", prefix="sticky")) as jobs,
    ):
        view = joined(store, first_view(store), "a")
        heard(keyspace_topic(DOCUMENT, SCOPE))
        assert not store.swap(None, view)
        heard()
        store.heartbeat("a-1")
        heard(keyspace_topic(HEARTBEAT, SCOPE))
        store.heartbeat("a-1", announce=False)
        heard()
        places.enlist("a", "a-1")
        heard()
        places.pin("a", "key", take=False)
        heard(keyspace_topic(PINS, SCOPE))
        steps.queued(jobs)
        heard(keyspace_topic(JOBS, SCOPE))


def test_a_store_hears_of_others_and_asks_nothing_meanwhile(broker: OnSql, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "LONG_PAUSE", "HEARTBEAT_PAUSE"):
        monkeypatch.setattr(poller, name, 0.0 if name == "HEARTBEAT_PAUSE" else 1e6)
    with (
        closing(SqlStore(database(broker.url), "default", prefix="sticky")) as store,
        closing(SqlStore(database(broker.url), "default", prefix="sticky")) as other,
    ):
        joined(store, joined(store, first_view(store), "a"), "b")
        assert store.watch(0.0) == []
        wait_proven(store._poller._hearing)
        store.heartbeat("a-1")  # its own ring is no news
        with counted() as sent:
            assert store.watch(0.2) == []
            assert sent.work == []
        other.heartbeat("b-1")
        assert store.watch(20.0) == [HeartbeatHeard("b-1", 1)]


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_a_consumer_of_kombu_hears_of_messages_broadcasts_and_etas(
    on_database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SAFETY_PAUSE", "LONG_PAUSE"):
        monkeypatch.setattr(looks, name, 1e6)
    options = on_database["broker_transport_options"]
    news, got = Exchange("news", type="fanout"), list[Any]()
    with Connection(on_database["broker"], transport_options=options) as consuming:
        queues = [Queue("work"), Queue("listens", news, auto_delete=True)]
        with Consumer(consuming.channel(), queues, on_message=got.append):
            pump = consuming.transport.pump
            wait_until(lambda: pump._hearing is not None and pump._hearing.proven, 20)
            wait_until(lambda: pump._looks.next_at > 1e6, 20, "only what is heard makes it look")
            with Connection(on_database["broker"], transport_options=options) as sending:
                producer = Producer(sending.default_channel)
                producer.publish("a message", exchange="", routing_key="work")
                producer.publish("a broadcast", exchange="news", declare=[news])
                soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
                producer.publish("an ETA", exchange="", routing_key="work", headers={"eta": soon})
                wait_until(lambda: drained(consuming) and len(got) == 3, 20)
    assert sorted(message.payload for message in got) == ["a broadcast", "a message", "an ETA"]


def drained(connection: Connection) -> bool:
    """Take what comes; return True when nothing comes for a moment."""
    try:
        while True:
            connection.drain_events(timeout=0.05)
    except TimeoutError:
        return True
