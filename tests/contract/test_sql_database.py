"""Connections to databases: the schema and its migrations, deadlines, refusals, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from harness.sql_broker import OnSql
from harness.sql_servers import connect

from celery_sticky.errors import BrokerUnavailable, SchemaTooNew, SchemaTooOld
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.sql import Address, Database
from celery_sticky.sql.migrations import MIGRATIONS
from celery_sticky.sql.migrations.m0001_slot_queues import STATEMENTS as SLOT_QUEUES
from celery_sticky.sql.migrations.m0006_vacuum import SETTINGS
from celery_sticky.sql.schema import NEWEST, statements
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.queue_steps import AGAIN, FIRST, NEXT, ack, bodies, open_slot, take
from celery_sticky.testing.servers.postgresql import PostgresServer

KILL = {
    "postgresql": "SELECT pg_terminate_backend(%s)",
    "mysql": "KILL %s",
}
OWN_ID = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}


def database(url: str, prefix: str = "sticky_", timeout: float = 20.0, migrate: bool = True) -> Database:
    return Database(Address.parse(url), timeout=timeout, unavailable=BrokerUnavailable, prefix=prefix, migrate=migrate)


@contextmanager
def connected(database: Database) -> Iterator[Database]:
    try:
        yield database
    finally:
        database.close()


# -- The schema ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_migrate_an_empty_database_at_once_do_not_disturb_each_other(
    sql_url: str, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_sticky.sql import schema

    once = "INSERT INTO {fence} (queue, epoch, incarnation, opens, opening) VALUES (1, 1, '', 1, 1)"
    monkeypatch.setattr(schema, "MIGRATIONS", ((*SLOT_QUEUES, once),))
    failures: list[BaseException] = []
    ready, prefix = threading.Barrier(8), f"at_once_{attempt}_"

    def start() -> None:
        with connected(database(sql_url, prefix)) as one:
            ready.wait(20)
            try:
                one.rows("SELECT COUNT(*) FROM {message}")
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with connected(database(sql_url, prefix)) as one:
        names = [bytes(row[0]) for row in one.rows("SELECT name FROM {meta} ORDER BY name")]
        assert names == [b"store", b"version"]
        assert one.rows("SELECT COUNT(*) FROM {fence}") == [(1,)]


def test_a_release_refuses_a_schema_that_a_newer_one_has_migrated(sql_url: str) -> None:
    with connected(database(sql_url, "newer_")) as one:
        one.run("UPDATE {meta} SET value = %s WHERE name = %s", [b"%d" % (len(MIGRATIONS) + 1), b"version"])
    with connected(database(sql_url, "newer_")) as one:
        for _ in range(2):
            with pytest.raises(
                SchemaTooNew, match=rf"newer_\* have version {len(MIGRATIONS) + 1}.*upgrade celery-sticky here"
            ):
                one.rows("SELECT COUNT(*) FROM {message}")


def test_a_process_that_may_not_migrate_says_what_to_do_and_goes_on_once_it_is_done(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(database(sql_url, "careful_", migrate=False)) as careful:
        for _ in range(2):
            with pytest.raises(SchemaTooOld, match=rf"careful_\* have version 0.* needs version {NEWEST}.*sql migrate"):
                careful.rows("SELECT COUNT(*) FROM {message}")
        assert careful.schema_version() == 0
        with connected(database(sql_url, "careful_")) as other:
            assert other.schema_version() == 0, "a look creates nothing"
            other.rows("SELECT COUNT(*) FROM {message}")
        assert careful.rows("SELECT COUNT(*) FROM {message}") == [(0,)]
        assert careful.schema_version() == NEWEST


def test_the_statements_for_a_database_administrator_are_those_of_a_migration(sql_url: str) -> None:
    made = database(sql_url, "by_hand_")
    with closing(made.dialect.connect(Address.parse(sql_url), 20.0)) as link:
        for _ in range(2):  # each can be repeated
            for statement in statements(made.dialect, made.tables, since=0):
                link.run(statement)
    with connected(database(sql_url, "by_hand_", migrate=False)) as careful:
        assert careful.rows("SELECT COUNT(*) FROM {message}") == [(0,)]
        assert len(careful.rows("SELECT value FROM {meta} WHERE name = %s", [b"store"])[0][0]) == 32


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_tables_whose_rows_come_and_go_are_vacuumed_early_however_big_they_are(sql_url: str) -> None:
    with connected(database(sql_url, "churn_")) as one:
        options = "SELECT relname, reloptions FROM pg_class WHERE relname LIKE %s AND relkind = 'r'"
        settings = {name: set(found or ()) for name, found in one.rows(options, ["churn\\_%"])}
        always = "autovacuum_vacuum_scale_factor=0"
        assert {name for name, found in settings.items() if always in found} == {f"churn_{table}" for table in SETTINGS}
        assert "autovacuum_vacuum_threshold=5000" in settings["churn_message"]
        assert "fillfactor=50" in settings["churn_fence"]
        toast = "SELECT t.reloptions FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.relname = %s"
        assert always in one.rows(toast, ["churn_message"])[0][0]


def test_a_migration_that_was_interrupted_goes_on(sql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_sticky.sql import schema

    broken = (*SLOT_QUEUES[:3], "CREATE NONSENSE")
    monkeypatch.setattr(schema, "MIGRATIONS", (broken,))
    with connected(database(sql_url, "interrupted_")) as one, pytest.raises(BrokerUnavailable):
        one.rows("SELECT COUNT(*) FROM {message}")
    monkeypatch.undo()
    with connected(database(sql_url, "interrupted_")) as one:
        assert one.rows("SELECT COUNT(*) FROM {dead}") == [(0,)]


def test_the_tables_may_be_in_a_schema_of_their_own(postgresql_url: str) -> None:
    with connect(postgresql_url) as raw:
        raw.execute("CREATE SCHEMA own")
    for _ in range(2):
        with connected(database(postgresql_url, "own.sticky_")) as one:
            found = one.rows("SELECT schemaname FROM pg_tables WHERE tablename = 'sticky_deferred'")
            assert ("own",) in found


# -- Trouble -------------------------------------------------------------------------------------


def test_after_a_killed_connection_slots_are_opened_again_and_nothing_is_lost(server_url: str) -> None:
    broker = OnSql(server_url)
    queues = broker.driver()
    open_slot(queues, FIRST)
    broker.publish_many(7, [b"1", b"2"])
    first, second = take(queues, FIRST).deliveries
    kind = Address.parse(server_url).kind
    own = queues._database.rows(OWN_ID[kind])[0][0]
    with connect(server_url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute(KILL[kind], [own])
    with pytest.raises(BrokerUnavailable):
        take(queues, FIRST, ack(first))
    assert list(open_slot(queues, AGAIN, [second.tag])) == [second.tag], "it runs here and stays in flight"
    assert bodies(take(queues, AGAIN)) == [b"1"]
    assert take(queues, AGAIN, ack(second, AGAIN)).confirmed == [ack(second, AGAIN)]
    queues.close()
    broker.close()


def test_a_read_only_server_is_unavailable_until_it_is_not(postgresql_url: str) -> None:
    broker = OnSql(postgresql_url)
    name = Address.parse(postgresql_url).database
    queues = broker.driver()
    with connect(postgresql_url) as raw:
        raw.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            with pytest.raises(BrokerUnavailable, match=r"25006.*read-only; connecting again to find the primary"):
                open_slot(queues, FIRST)
        finally:
            raw.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    open_slot(queues, NEXT)
    queues.close()
    broker.close()


def test_transactions_are_read_committed_whatever_the_server_prefers(postgresql_url: str) -> None:
    name = Address.parse(postgresql_url).database
    with connect(postgresql_url) as raw:
        raw.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        try:
            with connected(database(postgresql_url)) as one:
                shown = "SELECT current_setting('transaction_isolation')"
                assert one.rows(shown) == [("read committed",)]
                with one.transaction() as inside:
                    assert inside.rows(shown) == [("read committed",)]
        finally:
            raw.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")


def test_a_frozen_backend_is_given_up(guard: Guard) -> None:
    server = PostgresServer(guard).start()
    queues = SqlQueues(database(server.url, timeout=1.0), prefix="sticky")
    open_slot(queues, FIRST)
    backend = queues._database.rows(OWN_ID["postgresql"])[0][0]
    os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerUnavailable):
            take(queues, FIRST)
        open_slot(queues, NEXT)  # on another connection
        assert take(queues, NEXT).deliveries == []
    finally:
        os.kill(backend, signal.SIGCONT)
        queues.close()
        server.teardown()


def test_a_file_that_another_program_has_locked_is_unavailable_until_it_is_not(sqlite_url: str) -> None:
    broker = OnSql(sqlite_url)
    queues = broker.driver(socket_timeout=0.2)
    with connect(sqlite_url) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(BrokerUnavailable, match=r"SQLITE_BUSY.*another program holds the file's lock"):
            open_slot(queues, FIRST)
        raw.execute("ROLLBACK")
    open_slot(queues, NEXT)
    queues.close()
    broker.close()


def test_a_full_disk_is_named(sqlite_url: str) -> None:
    with connected(database(sqlite_url)) as one:
        one.rows("PRAGMA max_page_count = 20")
        with pytest.raises(BrokerUnavailable, match=r"SQLITE_FULL.*its disk is full"):
            one.run("INSERT INTO {message} (queue, priority, body) VALUES (1, 0, %s)", [bytes(1_000_000)])
        assert one.rows("SELECT COUNT(*) FROM {message}") == [(0,)]


# -- Processes -----------------------------------------------------------------------------------

FORK = """
    import os, sys
    from celery_sticky.errors import BrokerUnavailable
    from celery_sticky.sql import Address, Database

    one = Database(Address.parse(sys.argv[1]), timeout=20.0, unavailable=BrokerUnavailable)
    before = one.rows(sys.argv[2])
    child = os.fork()
    if child == 0:
        inside = one.rows(sys.argv[2])
        one.close()
        os._exit(0 if inside != before or sys.argv[2] == "SELECT 1" else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child has a connection of its own"
    assert one.rows(sys.argv[2]) == before, "the parent's connection has survived the child"
    one.close()
"""


def test_a_child_process_uses_a_connection_of_its_own(sql_url: str) -> None:
    statement = OWN_ID.get(Address.parse(sql_url).kind, "SELECT 1")
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(FORK), sql_url, statement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kind", "library"), [("postgresql", "psycopg"), ("mysql", "pymysql")])
def test_a_missing_client_library_is_named_with_its_extra(kind: str, library: str) -> None:
    code = f"""
        import sys
        sys.modules[{library!r}] = None
        from celery_sticky.errors import BrokerUnavailable, MissingDependency
        from celery_sticky.sql import Address, Database
        try:
            Database(Address.parse("sticky+{kind}://u@h/d"), timeout=1.0, unavailable=BrokerUnavailable)
        except MissingDependency as error:
            assert "celery-sticky[{kind}]" in str(error), error
        else:
            raise SystemExit("it was not missed")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
