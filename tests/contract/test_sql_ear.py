"""The bell and the ear of PostgreSQL: what is rung, when it is heard, and what follows when nothing is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from harness.deaf_pooler import DeafPooler
from harness.sql_broker import OnSql
from harness.sql_servers import connect as raw_connection
from harness.sql_stores import end_others
from harness.statements import counted

from celery_sticky.errors import BrokerUnavailable, InvalidSettings
from celery_sticky.queues.sql import SqlQueues, publish, waiting
from celery_sticky.sql import Address, Database, ear
from celery_sticky.sql.bell import PAYLOAD, Ring, payloads, queue_topic, read
from celery_sticky.sql.database import Notify
from celery_sticky.sql.ear import Hearing, hear
from celery_sticky.testing.queue_steps import FIRST, HERE, LONG, open_slot, take
from celery_sticky.testing.waiting import wait_until

INSERT = "INSERT INTO {queue} (queue, name) VALUES (%s, %s)"
Connect = Callable[..., Database]
Listen = Callable[[Database], Hearing]


@pytest.fixture
def connect(postgresql_url: str) -> Iterator[Connect]:
    """Makes connections to one database, with tables of their own."""
    made: list[Database] = []

    def new(url: str = postgresql_url, **options: object) -> Database:
        given: dict[str, Any] = {"timeout": 20.0, **options}
        database = Database(Address.parse(url), unavailable=BrokerUnavailable, **given)
        made.append(database)
        return database

    new().run("DELETE FROM {queue}")
    yield new
    for database in made:
        database.close()


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Makes hearings that are closed after the test."""
    made: list[Hearing] = []

    def new(database: Database, woken: Callable[[], None] = lambda: None) -> Hearing:
        made.append(hear(database, woken))
        return made[-1]

    yield new
    for hearing in made:
        hearing.close()


def wait_proven(*hearings: Hearing) -> None:
    wait_until(lambda: all(hearing.proven for hearing in hearings), 20, "the ear hears itself")
    for hearing in hearings:
        hearing.take()


def wait_heard(hearing: Hearing, *topics: str) -> None:
    heard: set[str] = set()

    def all_heard() -> bool:
        heard.update(hearing.take().topics)
        return heard >= set(topics)

    wait_until(all_heard, 20, f"{topics} are heard")
    assert heard == set(topics)


# -- Ringing -------------------------------------------------------------------------------------


def test_a_statement_rings_for_everyone_who_listens(connect: Connect, listen: Listen) -> None:
    database = connect()
    hearings = [listen(database), listen(connect())]
    wait_proven(*hearings)
    assert database.run(INSERT, [1, b"a"], ring=["q1", "q-2"]) == 1
    for hearing in hearings:
        wait_heard(hearing, "q1", "q-2")


def test_a_transaction_rings_after_its_commit_in_a_transaction_of_its_own(connect: Connect, listen: Listen) -> None:
    database = connect()
    hearing = listen(database)
    wait_proven(hearing)
    database.rows("SELECT 1")  # connects
    with counted() as sent:
        with database.transaction() as inside:
            inside.run(INSERT, [1, b"a"], ring=["q1"])
            inside.run(INSERT, [2, b"b"], ring=["q2", "q1"])
            assert sent.rings == []
        assert [one.split()[0] for one in sent] == ["BEGIN", "INSERT", "INSERT", "COMMIT", "SELECT"]
        assert len(sent.rings) == 1
    wait_heard(hearing, "q1", "q2")


def test_a_transaction_that_is_rolled_back_rings_for_nobody(connect: Connect) -> None:
    database = connect()

    def fails() -> None:
        with database.transaction() as inside:
            inside.run(INSERT, [1, b"a"], ring=["q1"])
            raise RuntimeError

    with counted() as sent, pytest.raises(RuntimeError):
        fails()
    assert sent.rings == []


def test_a_statement_that_fails_rings_for_nobody(connect: Connect) -> None:
    database = connect()
    database.run(INSERT, [1, b"a"])
    with counted() as sent, pytest.raises(BrokerUnavailable, match="23505"):
        database.run(INSERT, [1, b"again"], ring=["q1"])
    assert sent.rings == []
    assert database.rows("SELECT name FROM {queue}") == [(b"a",)]


def test_a_ring_that_fails_fails_no_statement(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_sticky.sql.dialects import postgresql_bell

    monkeypatch.setattr(postgresql_bell, "RING", "SELECT 1 / 0, %s::text, %s::text")
    database = connect()
    pid = database.rows("SELECT pg_backend_pid()")
    assert database.run(INSERT, [1, b"a"], ring=["q1"]) == 1
    with database.transaction() as inside:
        inside.run(INSERT, [2, b"b"], ring=["q1"])
    assert len(database.rows("SELECT name FROM {queue}")) == 2
    assert database.rows("SELECT pg_backend_pid()") == pid, "the connection can still be used"


def test_a_ring_that_is_not_answered_fails_no_statement(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_sticky.sql.dialects import postgresql_bell

    monkeypatch.setattr(postgresql_bell, "RING", "SELECT pg_sleep(60), %s::text, %s::text")
    database = connect(timeout=1.0)
    assert database.run(INSERT, [1, b"a"], ring=["q1"]) == 1
    assert database.rows("SELECT name FROM {queue}") == [(b"a",)], "over a new connection"


def test_a_ring_does_not_wait_for_the_disk(connect: Connect) -> None:
    from celery_sticky.sql.dialects.postgresql_bell import RING

    shown, database = "SELECT current_setting('synchronous_commit')", connect()
    with database.transaction() as inside:
        inside.rows(RING, ["a channel", "a payload"])
        assert inside.rows(shown) == [("off",)]
    assert database.rows(shown) == [("on",)], "for its own transaction alone"


def test_many_topics_fit_into_several_rings() -> None:
    topics = [queue_topic(number) for number in range(-3000, 0)]
    found = list(payloads(Ring("me", topics)))
    assert len(found) > 1 and all(len(one) <= PAYLOAD for one in found)
    rings = [read(one) for one in found]
    assert {ring.ringer for ring in rings} == {"me"}
    assert [topic for ring in rings for topic in ring.topics] == topics


def test_with_notify_off_nobody_rings_or_listens(connect: Connect, listen: Listen) -> None:
    quiet = connect(notify=Notify(rings=False))
    with counted() as sent:
        quiet.run(INSERT, [1, b"a"], ring=["q1"])
        listen(quiet)
    assert sent.rings == [] and not ear._ears


def test_only_postgresql_can_be_listened_to(sqlite_url: str) -> None:
    from kombu import Connection

    options = {"listen_url": sqlite_url}
    with pytest.raises(InvalidSettings, match=r"listen_url is sqlite.*only PostgreSQL can notify"):
        Database.of(
            Connection(f"sticky+{sqlite_url}", transport_options=options), timeout=1.0, unavailable=BrokerUnavailable
        )


# -- The ear -------------------------------------------------------------------------------------


def test_a_process_has_one_ear_which_ends_with_the_last_who_listens(connect: Connect, postgresql_url: str) -> None:
    first, second = hear(connect(), lambda: None), hear(connect(), lambda: None)
    wait_proven(first, second)
    assert listeners(postgresql_url) == 1
    first.close()
    assert second.proven and not first.proven
    second.close()
    wait_until(lambda: listeners(postgresql_url) == 0, 20, "the connection is closed")


def test_where_nothing_is_heard_it_is_polled(
    connect: Connect,
    listen: Listen,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ear, "PROOF_SECONDS", 0.3)
    with closing(DeafPooler(postgresql_url)) as pooler:
        deaf = listen(connect(pooler.url))
        wait_until(lambda: "set the transport option listen_url" in caplog.text, 20)
        assert not deaf.proven
        hearing = listen(connect(pooler.url, notify=Notify(Address.parse(postgresql_url))))
        wait_proven(hearing)
        connect(pooler.url).run(INSERT, [1, b"a"], ring=["q1"])
        wait_heard(hearing, "q1")


def test_a_lost_connection_is_noticed_and_made_again(
    connect: Connect, listen: Listen, postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hearing = listen(connect())
    wait_proven(hearing)
    end_others(postgresql_url)
    wait_until(lambda: "this process looks for changes at short intervals" in caplog.text, 20)
    wait_until(lambda: hearing.proven, 20, "it hears again")
    assert hearing.take().everything, "rings were lost meanwhile"
    assert "notifications arrive again" in caplog.text


def test_an_ear_that_hears_nothing_any_more_is_noticed(
    connect: Connect,
    listen: Listen,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ear, "CHECK_SECONDS", 0.2)
    hearing = listen(connect())
    wait_proven(hearing)
    monkeypatch.setattr("celery_sticky.sql.dialects.postgresql_bell.RING", "SELECT %s::text, %s::text")
    wait_until(lambda: "notifications do not arrive any more" in caplog.text, 20)
    assert not hearing.proven and hearing.take().everything


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_fork_has_an_ear_of_its_own(connect: Connect, listen: Listen) -> None:
    database = connect()
    hearing = listen(database)
    wait_proven(hearing)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own = hear(database, lambda: None)
            wait_proven(own)
            database.run(INSERT, [1, b"child"], ring=["q1"])
            wait_heard(own, "q1")
            own.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_heard(hearing, "q1")
    assert hearing.proven


def listeners(url: str) -> int:
    """Return the number of connections that have listened or rung last: those of ears."""
    with raw_connection(url) as raw:
        found = raw.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND query LIKE 'LISTEN%'"
        )
        return int(found.fetchone()[0])


# -- Those who wait ------------------------------------------------------------------------------


@pytest.fixture
def broker(postgresql_url: str) -> Iterator[OnSql]:
    with closing(OnSql(postgresql_url)) as broker:
        yield broker


@pytest.fixture
def queues(broker: OnSql, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlQueues]:
    """A driver with one slot that is empty, whose ear is proven, and who looks only when it hears something."""
    monkeypatch.setattr(waiting, "SAFETY_PAUSE", 1e6)
    driver = broker.driver()
    open_slot(driver, FIRST)
    take(driver, FIRST)
    wait_until(lambda: driver._waiting._hearing is not None and driver._waiting._hearing.proven, 20)
    assert driver.idle(0.0) == set()
    yield driver
    driver.close()


def test_an_idle_driver_asks_nothing_until_it_hears_of_a_message(broker: OnSql, queues: SqlQueues) -> None:
    with counted() as sent:
        for _ in range(100):
            assert queues.idle(0.0) == set()
        assert sent.work == []
        timer = threading.Timer(0.1, broker.publish, ("default", FIRST.slot, b"1"))
        timer.start()
        assert queues.idle(LONG) == {HERE}
        timer.join()
        assert len(sent.work) == 1, "the INSERT"
    assert [one.body for one in take(queues, FIRST).deliveries] == [b"1"]


def test_a_ring_between_a_fetch_and_the_wait_counts(broker: OnSql, queues: SqlQueues) -> None:
    broker.publish("default", FIRST.slot, b"1")
    assert queues.idle(LONG) == {HERE}
    # Heard before the fetch has ended that finds nothing: it may be about a message committed during the fetch.
    hearing = queues._waiting._hearing
    assert hearing is not None
    assert len(take(queues, FIRST).deliveries) == 1
    hearing.hear(Ring("somebody", [queue_topic(queues._exchange.slots[HERE].queue)]))
    take(queues, FIRST)
    assert queues.idle(0.0) == {HERE}


def test_a_message_whose_ring_was_lost_is_found_later(
    broker: OnSql, queues: SqlQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SAFETY_PAUSE", 0.2)
    quiet = Database(Address.parse(broker.url), timeout=20.0, unavailable=BrokerUnavailable, notify=Notify(rings=False))
    queues._waiting._next_look = 0.0
    assert queues.idle(0.0) == set()
    with closing(quiet):
        publish(quiet, "sticky.default.7", [b"1"])
    assert queues.idle(LONG) == {HERE}


def test_a_driver_polls_again_when_the_ear_is_lost(
    broker: OnSql, queues: SqlQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ear, "RETRY_FIRST", 1e6)
    hearing = queues._waiting._hearing
    assert hearing is not None
    with raw_connection(broker.url) as raw:
        raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'LISTEN%'"
        )
    wait_until(lambda: not hearing.proven, 20)
    broker.publish("default", FIRST.slot, b"1")
    assert queues.idle(LONG) == {HERE}
