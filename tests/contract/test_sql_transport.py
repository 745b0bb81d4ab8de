"""The Kombu transport of SQL databases, as Kombu's own classes use it."""

# Kombu has no types.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from harness.sql_stores import end_others
from kombu import Connection, Consumer, Exchange, Producer, Queue

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address, Database
from celery_sticky.testing.waiting import wait_until
from celery_sticky.transport.sql.broadcasts import Reader, broadcast, newest
from celery_sticky.transport.sql.consumers import BEATS
from celery_sticky.transport.sql.events import PAUSE, Spared

QUICK = {"eviction_timeout": 1.0}
WORK = Queue("work")
Connect = Callable[..., Connection]


@pytest.fixture
def connect(on_database: dict[str, Any]) -> Iterator[Connect]:
    """Makes connections to one broker."""
    made: list[Connection] = []

    def new(**options: Any) -> Connection:
        options = {**on_database["broker_transport_options"], **options}
        made.append(Connection(on_database["broker"], transport_options=options))
        return made[-1]

    yield new
    for connection in made:
        connection.release()


@pytest.fixture
def database(on_database: dict[str, Any]) -> Iterator[Database]:
    """The broker's database."""
    prefix = on_database["broker_transport_options"]["table_prefix"]
    address = Address.parse(on_database["broker"])
    with closing(Database(address, timeout=20.0, unavailable=BrokerUnavailable, prefix=prefix)) as own:
        yield own


class Taker:
    """Consumes from queues and keeps the messages."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False) -> None:
        self.connection, self.messages = connection, list[Any]()
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, list(queues), on_message=self.messages.append, no_ack=no_ack)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def wait(self, count: int, timeout: float = 20.0) -> list[Any]:
        """Wait until there are so many messages; return their payloads."""
        wait_until(lambda: self.drain() or len(self.messages) >= count, timeout, f"{count} messages come")
        return self.payloads

    def drain(self, seconds: float = 0.05) -> bool:
        """Take what comes in this time; return False."""
        try:
            while True:
                self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            return False

    def quiet(self) -> None:
        """Take what comes while the database is looked at several times."""
        self.drain(0.5)

    @property
    def payloads(self) -> list[Any]:
        """What was sent."""
        return [message.payload for message in self.messages]


def send(connection: Connection, *payloads: Any, queue: Queue = WORK, **options: Any) -> None:
    """Publish to a queue."""
    producer = Producer(connection.default_channel)
    for payload in payloads:
        producer.publish(payload, exchange="", routing_key=queue.name, declare=[queue], **options)


def count(database: Database, table: str) -> int:
    """Return the number of rows."""
    return int(database.rows(f"SELECT COUNT(*) FROM {{{table}}}")[0][0])


def test_messages_come_in_order_and_are_gone_when_acknowledged(connect: Connect, database: Database) -> None:
    send(connect(), *range(250))
    taker = Taker(connect(), WORK)
    assert taker.wait(250) == list(range(250))
    assert count(database, "claim") == 250
    for message in taker.messages:
        message.ack()
    wait_until(lambda: (count(database, "message"), count(database, "claim")) == (0, 0), 20)


def test_bytes_and_text_and_empty_bodies_arrive_as_they_were_sent(connect: Connect) -> None:
    connection = connect()
    sent = ["text ü \0 end", b"\0\xff bytes", "", b"", {"a": [1, None]}]
    for one in sent[:4]:
        kind = {"content_type": "application/data", "content_encoding": "binary"} if isinstance(one, bytes) else {}
        send(connection, one, serializer=None if kind else "json", **kind)
    send(connection, sent[4], compression="zlib")
    taker = Taker(connect(), WORK)
    assert taker.wait(5)[0] == sent[0] and taker.payloads[2:] == ["", taker.payloads[3], sent[4]]
    assert bytes(taker.messages[1].body) == sent[1]


def test_a_prefetch_count_limits_what_is_claimed(connect: Connect, database: Database) -> None:
    send(connect(), *range(10))
    taker = Taker(connect(), WORK, prefetch=3)
    taker.wait(3)
    taker.quiet()
    assert taker.payloads == [0, 1, 2] and count(database, "claim") == 3
    taker.messages[0].ack()
    assert taker.wait(4) == [0, 1, 2, 3]
    taker.consumer.qos(prefetch_count=6)
    assert taker.wait(7) == [0, 1, 2, 3, 4, 5, 6]


def test_two_consumers_share_the_messages_of_a_queue(connect: Connect) -> None:
    takers = [Taker(connect(), WORK, prefetch=5) for _ in range(2)]
    send(connect(), *range(200))
    seen: list[int] = []

    def look() -> bool:
        for taker in takers:
            taker.drain(0.01)
            for message in taker.messages:
                seen.append(message.payload)
                message.ack()
            taker.messages.clear()
        return len(seen) >= 200

    wait_until(look, 30)
    assert sorted(seen) == list(range(200)), "none is lost and none comes twice"


def test_a_more_urgent_message_overtakes(connect: Connect) -> None:
    sender = connect()
    for priority in (9, 6, 3, 0):
        send(sender, priority, priority=priority)
    assert Taker(connect(), WORK).wait(4) == [0, 3, 6, 9]


def test_a_message_that_goes_back_has_its_old_place(connect: Connect) -> None:
    send(connect(), *range(5))
    taker = Taker(connect(), WORK, prefetch=2)
    taker.wait(2)
    taker.messages[0].requeue()
    assert taker.wait(3)[2] == 0
    taker.messages[1].reject()
    assert taker.wait(4)[3] == 2


def test_what_a_closed_connection_held_goes_back_in_order(connect: Connect, database: Database) -> None:
    send(connect(), *range(6))
    first = connect()
    taker = Taker(first, WORK)
    taker.wait(6)
    taker.messages[2].ack()
    first.release()
    assert (count(database, "claim"), count(database, "consumer")) == (0, 0)
    assert Taker(connect(), WORK).wait(5) == [0, 1, 3, 4, 5]


def test_a_closed_channel_gives_its_messages_back(connect: Connect) -> None:
    send(connect(), *range(3))
    connection = connect()
    taker = Taker(connection, WORK)
    taker.wait(3)
    taker.channel.close()
    assert Taker(connection, WORK).wait(3) == [0, 1, 2]


def test_messages_of_a_consumer_that_fell_silent_come_again_and_its_acks_touch_nothing(
    connect: Connect, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    send(connect(), *range(3))
    silent = Taker(connect(eviction_timeout=1000.0), WORK)  # its heartbeats are too seldom for the others
    silent.wait(3)
    other = Taker(connect(**QUICK), WORK)
    assert other.wait(3) == [0, 1, 2]
    assert "the 3 messages that it held go back" in caplog.text
    for message in silent.messages:
        message.ack()
    silent.quiet()
    assert count(database, "message") == 3
    for message in other.messages:
        message.ack()
    wait_until(lambda: count(database, "message") == 0, 20)
    send(connect(), 3)
    wait_until(lambda: silent.drain() or other.drain() or 3 in silent.payloads + other.payloads, 20)


def test_claims_without_a_consumer_are_given_back(connect: Connect, database: Database) -> None:
    send(connect(), "lost")
    columns = "queue, priority, id"
    database.run(f"INSERT INTO {{claim}} ({columns}, consumer) SELECT {columns}, %s FROM {{message}}", [b"gone"])
    assert Taker(connect(**QUICK), WORK).wait(1) == ["lost"]


def test_a_live_consumer_keeps_its_messages(connect: Connect, database: Database) -> None:
    send(connect(), "kept")
    first = Taker(connect(eviction_timeout=6.0), WORK)
    first.wait(1)
    second = Taker(connect(eviction_timeout=6.0), WORK)
    heartbeats = "SELECT SUM(counter) FROM {consumer}"
    [(began,)] = database.rows(heartbeats)
    wait_until(lambda: second.drain() or database.rows(heartbeats)[0][0] >= began + 4 * BEATS, 60)
    assert second.messages == []


@pytest.mark.parametrize("sql_url", ["postgresql", "mariadb"], indirect=True)
def test_a_consumer_whose_connections_are_ended_goes_on(
    connect: Connect, database: Database, sql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(connect(), 1, 2)
    taker = Taker(connect(), WORK)
    taker.wait(2)
    database.close()
    end_others(sql_url)
    taker.messages[0].ack()
    send(connect(), 3)
    assert taker.wait(3) == [1, 2, 3]
    wait_until(lambda: count(database, "message") == 2, 20)
    wait_until(lambda: "the broker answers again" in caplog.text, 20)
    assert "trying again until it answers" in caplog.text
    for message in taker.messages[1:]:
        message.ack()
    wait_until(lambda: count(database, "message") == 0, 20)


def test_messages_that_need_no_acknowledgement_are_deleted(connect: Connect, database: Database) -> None:
    send(connect(), 1, 2)
    assert Taker(connect(), WORK, no_ack=True).wait(2) == [1, 2]
    wait_until(lambda: (count(database, "message"), count(database, "claim")) == (0, 0), 20)


def test_a_message_waits_in_the_database_until_it_is_due(connect: Connect, database: Database) -> None:
    sender, taker = connect(), Taker(connect(), WORK)
    send(sender, "past", headers={"eta": (datetime.now(UTC) - timedelta(hours=1)).isoformat()})
    send(sender, "far", headers={"eta": (datetime.now(UTC) + timedelta(hours=1)).isoformat()})
    due = datetime.now(UTC) + timedelta(seconds=1)
    send(sender, "soon", headers={"eta": due.isoformat()})
    assert taker.wait(2) == ["past", "soon"] and datetime.now(UTC) >= due
    taker.quiet()
    assert len(taker.messages) == 2 and count(database, "deferred") == 1


def test_a_queue_can_be_counted_purged_and_deleted(connect: Connect, database: Database) -> None:
    connection = connect()
    send(connection, *range(5))
    taker = Taker(connect(), WORK, prefetch=2)
    taker.wait(2)
    bound = WORK(connection.default_channel)
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    taker.messages[0].ack()
    assert connection.default_channel._has_queue("work") and not connection.default_channel._has_queue("nosuch")
    bound.delete()
    assert [count(database, table) for table in ("message", "claim", "queue")] == [0, 0, 0]


def test_a_broadcast_is_one_row_and_reaches_everyone_who_listens(connect: Connect, database: Database) -> None:
    exchange = Exchange("news", type="fanout")
    queues = [Queue(f"news-{n}", exchange, auto_delete=True) for n in range(3)]
    producer = Producer(connect().default_channel, exchange)
    producer.publish("before")
    takers = [Taker(connect(), queue, no_ack=True) for queue in queues]
    for n in range(3):
        producer.publish(n)
    for taker in takers:
        assert taker.wait(3) == [0, 1, 2]
        taker.quiet()
        assert taker.payloads == [0, 1, 2], "each comes once"
    assert count(database, "broadcast") == 4 and count(database, "message") == 0


def test_topics_reach_listeners_by_pattern_and_kept_queues_as_messages(connect: Connect, database: Database) -> None:
    exchange = Exchange("events", type="topic")
    listener = Taker(connect(), Queue("listens", exchange, "task.#", auto_delete=True), no_ack=True)
    kept = Queue("kept", exchange, "worker.*")
    kept(connect().default_channel).declare()
    producer = Producer(connect().default_channel, exchange)
    producer.publish("a", routing_key="task.sent")
    producer.publish("b", routing_key="worker.online")
    assert listener.wait(1) == ["a"]
    assert Taker(connect(), kept).wait(1) == ["b"]
    listener.quiet()
    assert listener.payloads == ["a"]


def test_replies_find_a_queue_that_another_connection_bound_and_it_expires(
    connect: Connect, database: Database
) -> None:
    exchange = Exchange("replies", type="direct", durable=False)
    reply_to = Queue("oid.replies", exchange, "oid", auto_delete=True, expires=0.2, durable=False)
    client = connect()
    taker = Taker(client, reply_to, no_ack=True)
    producer = Producer(connect().default_channel, exchange)
    producer.publish("pong", routing_key="oid")
    assert taker.wait(1) == ["pong"]
    client.release()
    producer.publish("late", routing_key="oid")
    wait_until(lambda: database.rows("SELECT 1 FROM {queue} WHERE expires < " + database.dialect.clock), 20)
    Taker(connect(), WORK)  # any consumer removes what has expired
    wait_until(lambda: [count(database, table) for table in ("binding", "message")] == [0, 0], 20)


def test_a_message_that_is_no_envelope_is_skipped_and_kept(
    connect: Connect, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    send(connect(), "first", "second")
    database.run("UPDATE {message} SET body = %s WHERE id = (SELECT * FROM (SELECT MIN(id) FROM {message}) x)", [b"[]"])
    assert Taker(connect(), WORK).wait(1) == ["second"]
    assert "of queue 'work' is not one that Kombu writes" in caplog.text
    assert count(database, "message") == 2


@pytest.mark.parametrize("sql_url", ["postgresql", "mariadb"], indirect=True)
def test_a_broadcast_that_is_committed_late_is_heard(database: Database, on_database: dict[str, Any]) -> None:
    reader = Reader(database)
    reader.start(newest(database))
    prefix = on_database["broker_transport_options"]["table_prefix"]
    address = Address.parse(on_database["broker"])
    with closing(Database(address, timeout=20.0, unavailable=BrokerUnavailable, prefix=prefix)) as other:
        with other.transaction() as inside:
            columns = "exchange, routing_key, at, body"
            inside.run(f"INSERT INTO {{broadcast}} ({columns}) VALUES (%s, %s, 1.0, %s)", [b"news", b"", b"late"])
            broadcast(database, "news", "", b"early")
            assert [row.body for row in reader.read()] == [b"early"]
        assert [row.body for row in reader.read()] == [b"late"]
        assert reader.read() == []


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
def test_a_worker_sends_events_and_drops_them_while_the_database_is_away(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, attempts = [0.0], list[None]()
    connection = connect()
    dispatcher = Celery("shop", set_as_current=False).events.Dispatcher(connection, buffer_while_offline=False)
    connection.transport.events = Spared(lambda: now[0])
    dispatcher.send("worker-heartbeat", retry=True)
    assert count(database, "broadcast") == 1

    def away(transport: Any) -> Any:
        attempts.append(None)
        raise BrokerUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(type(connection.transport), "sending", away)
        for _ in range(3):
            dispatcher.send("worker-heartbeat", retry=True)
    assert len(attempts) == 1 and caplog.text.count("events are dropped for 30 s") == 1
    dispatcher.send("worker-heartbeat", retry=True)
    assert count(database, "broadcast") == 1
    now[0] += PAUSE
    dispatcher.send("worker-heartbeat", retry=True)
    assert count(database, "broadcast") == 2
