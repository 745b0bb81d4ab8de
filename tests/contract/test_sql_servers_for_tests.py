"""The databases that tests, the demo and verify start: every verb of their protocol."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from harness.traces import processes_of

from celery_sticky.errors import BrokerUnavailable, MissingDependency
from celery_sticky.keys import queue_name
from celery_sticky.queues.base import Disposition, Opening, Outcome, Tenure, Want
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.queues.sql.names import queue_number
from celery_sticky.queues.sql.publish import publish
from celery_sticky.sql import Address, Database
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers import Kind, given, own_class
from celery_sticky.testing.servers.base import Ability, OwnServer
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.servers.sql import DatabaseRecords
from celery_sticky.testing.servers.sqlite import SqliteFile
from celery_sticky.testing.waiting import wait_until

Own = PostgresServer | SqliteFile
OLD, NEW = b"old", b"new"


@pytest.fixture(scope="module")
def started(guard: Guard) -> Iterator[PostgresServer]:
    """A PostgreSQL server of this module; each test finds it running."""
    server = PostgresServer(guard).start()
    yield server
    server.teardown()


@pytest.fixture(params=[Kind.POSTGRESQL, Kind.SQLITE])
def server(request: pytest.FixtureRequest, guard: Guard) -> Iterator[Own]:
    """A server of each kind without messages."""
    if request.param is Kind.SQLITE:
        file = SqliteFile(guard).start()
        yield file
        file.teardown()
        return
    yield emptied(request.getfixturevalue("started"))


def emptied(server: PostgresServer) -> PostgresServer:
    with closing(database(server)) as own:
        own.run("DELETE FROM {message}")
    return server


def database(server: DatabaseRecords, timeout: float = 20.0, prefix: str = "") -> Database:
    prefix = server.options(prefix)["table_prefix"]
    return Database(Address.parse(server.url), timeout=timeout, unavailable=BrokerUnavailable, prefix=prefix)


def write(server: DatabaseRecords, body: bytes, **options: Any) -> None:
    with closing(database(server, **options)) as own:
        publish(own, "q", [body], 0)


def read(server: DatabaseRecords) -> set[bytes]:
    with closing(database(server)) as own:
        return {bytes(body) for (body,) in own.rows("SELECT body FROM {message}")}


def test_messages_are_found_and_tables_dropped_by_their_prefix_alone(server: Own) -> None:
    write(server, b"... id-1 ...", prefix="ours_")
    write(server, b"... id-2 ...")
    other = given(server.url)
    for one in (server, other):
        assert one.find(["id-1", "id-2", "id-3"], "ours_") == {"id-1"}
        assert one.find(["id-1", "id-2"]) == {"id-2"}
    other.clear("ours_")
    assert server.find(["id-2"]) == {"id-2"}
    with pytest.raises(BrokerUnavailable, match="ours_"):
        other.find(["id-1"], "ours_")


def test_a_copy_comes_back_with_the_next_start(server: Own) -> None:
    before: OwnServer = server
    for body in (b"older", OLD):  # the second copy replaces the first
        write(server, body)
        before.copy()
    write(server, NEW)
    before.kill()
    before.restore()
    before.start()
    assert read(server) == {b"older", OLD}


def test_a_copy_comes_back_while_the_server_runs_and_is_used(server: Own) -> None:
    write(server, OLD)
    server.copy()
    with closing(database(server)) as own:
        publish(own, "q", [NEW], 0)
        server.restore()
        assert read(server) == {OLD}
        with ExitStack() as stack:
            if isinstance(server, SqliteFile):  # it says so once, and then goes on with the new file
                stack.enter_context(pytest.raises(BrokerUnavailable, match="replaced"))
            publish(own, "q", [b"later"], 0)
        publish(own, "q", [b"latest"], 0)
    assert read(server) >= {OLD, b"latest"} and NEW not in read(server)


def test_a_file_that_was_replaced_can_be_written_by_nobody_who_has_it_open(guard: Guard) -> None:
    file = SqliteFile(guard)
    write(file, OLD)
    file.copy()
    address = Address.parse(file.url)
    with closing(dialect_of(address).connect(address, 0.1).raw) as raw:
        file.restore()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            raw.execute("DELETE FROM sticky_message")
    file.teardown()


@pytest.mark.parametrize("how", [Ability.LOCK, Ability.READ_ONLY])
def test_nothing_can_be_written_until_the_block_ends(server: Own, how: Ability) -> None:
    if how in server.lacks:
        with pytest.raises(ValueError, match="stays writable"):
            server.impaired(how)
        return
    write(server, OLD)
    with server.impaired(how), pytest.raises(BrokerUnavailable):
        write(server, NEW, timeout=0.5)  # PostgreSQL may do it later, when the lock is gone
    write(server, NEW)
    assert read(server) >= {OLD, NEW}


def test_a_transaction_is_open_until_the_block_ends(server: Own) -> None:
    write(server, OLD)
    with server.impaired(Ability.HOLD) as held:
        assert held
        write(server, NEW)
        assert read(server) == {OLD, NEW}
        if isinstance(server, PostgresServer):
            with server.link() as link:
                open_ones = "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                assert link.rows(open_ones) == [(1,)]


def test_one_slot_queue_is_unusable_until_the_block_ends(server: Own) -> None:
    queues = [SqlQueues(database(server), prefix="sticky") for _ in range(2)]
    fetched = []
    for driver, slot in zip(queues, (1, 2), strict=True):
        tenure = Tenure("default", slot, 1, "a", 1)
        driver.open([Opening(tenure)])
        with closing(database(server)) as own:
            publish(own, queue_name("default", slot), [OLD], 0)
        fetched.append(driver.fetch([Want(tenure, 1)], (), 0.0).deliveries[0])
    acks = [Disposition(Outcome.ACK, one.tenure, one.tag) for one in fetched]
    with server.impaired(Ability.SPOIL, [queue_name("default", 1)]) as spoiled:
        assert spoiled
        assert queues[0].fetch((), acks[:1], 0.0).failed
        assert queues[1].fetch((), acks[1:], 0.0).confirmed == acks[1:]
    assert queues[0].fetch((), acks[:1], 0.0).confirmed == acks[:1]
    for driver in queues:
        driver.close()


def test_postgresql_ends_every_connection(started: PostgresServer) -> None:
    emptied(started)
    with closing(database(started)) as own:
        publish(own, "q", [OLD], 0)
        with started.impaired(Ability.DISCONNECT) as ended:
            assert ended
        with pytest.raises(BrokerUnavailable, match="57P01"):
            own.rows("SELECT 1")
        publish(own, "q", [NEW], 0)


def test_postgresql_ends_a_worker_that_waits_in_a_circle(started: PostgresServer) -> None:
    with closing(database(emptied(started))) as own:
        publish(own, "q", [OLD], 0)
        row = f"(%s, 1, 'a', 1, 1){own.dialect.or_nothing}"
        own.run(f"INSERT INTO {{fence}} (queue, epoch, incarnation, opens, opening) VALUES {row}", [queue_number("q")])
    over, ended = threading.Event(), list[str]()

    def settle() -> None:
        """Lock a fence, then messages, as a worker does; again and again."""
        with closing(database(started)) as worker:
            while not (ended or over.is_set()):
                try:
                    lock_in_turn(worker)
                except BrokerUnavailable as error:
                    ended.append(str(error))

    thread = threading.Thread(target=settle)
    thread.start()
    with started.impaired(Ability.DEADLOCK) as resolved:
        over.set()
    thread.join()
    assert resolved and "40P01" in ended[0]


def lock_in_turn(database: Database) -> None:
    with database.transaction() as inside:
        inside.rows("SELECT 1 FROM {fence} FOR SHARE")
        inside.rows("SELECT 1 FROM {message} FOR UPDATE")


def test_without_anybody_to_wait_there_is_no_deadlock(started: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sticky.testing.servers.postgresql_faults.LIMIT", 0.2)
    emptied(started)
    write(started, OLD)
    with started.impaired(Ability.DEADLOCK) as resolved:
        assert not resolved


def test_postgresql_is_frozen_killed_and_stopped(started: PostgresServer) -> None:
    emptied(started)
    with closing(database(started, timeout=1.0)) as own:
        publish(own, "q", [OLD], 0)
        started.freeze()
        with pytest.raises(BrokerUnavailable):
            own.rows("SELECT 1")
        started.thaw()
        for end in (started.kill, started.stop):
            end()
            with pytest.raises(BrokerUnavailable):
                own.rows("SELECT 1")
            started.start()
        assert read(started) == {OLD}
    started.restart()
    assert read(started) == {OLD}


def test_a_killed_owner_leaves_no_frozen_postgresql(guard: Guard) -> None:
    own = Guard()
    server = PostgresServer(own).start()
    folder, backend = server.folder, dialect_of(Address.parse(server.url)).connect(Address.parse(server.url), 5.0)
    server.freeze()
    own.close()
    wait_until(lambda: not processes_of(folder) and not folder.exists(), 20, "nothing is left")
    assert server._process is not None and server._process.wait(timeout=10) == 0, "it ended in order"
    backend.close()


def test_a_missing_package_is_named(guard: Guard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("celery_sticky.testing.servers.postgresql.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'celery-sticky\[verify-postgresql\]'"):
        PostgresServer(guard)


def test_postgresql_runs_where_the_temporary_folder_is_closed_to_others(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = PostgresServer(guard)
    server.start()  # as root this needs a folder elsewhere: the server's user is another one
    assert (server.folder.parent == tmp_path) is (os.geteuid() != 0)
    server.teardown()
    assert not server.folder.exists()


def test_what_a_kind_of_server_lacks_is_known_without_starting_one() -> None:
    for kind in Kind:
        assert all(own_class(kind).lacks.values()) and Ability.FAIL_OVER in own_class(kind).lacks
