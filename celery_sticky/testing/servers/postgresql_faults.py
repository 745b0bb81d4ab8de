"""What can be done to a PostgreSQL server over a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues.sql.names import queue_number
from celery_sticky.sql.link import Link
from celery_sticky.testing.servers.base import Ability
from celery_sticky.testing.servers.sql import TABLES, DatabaseRecords
from celery_sticky.testing.waiting import wait_until

TIMEOUT = 30.0
"""Seconds to wait for locks, which workers hold in turn."""
LIMIT = 6.0
"""Seconds within which somebody waits for a message that is locked, and the server looks for deadlocks and ends one."""
OTHERS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
REFUSE = """CREATE OR REPLACE FUNCTION sticky_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'messages of this queue stay'; END $$"""
TRIGGER = """CREATE TRIGGER sticky_refuse BEFORE DELETE ON {{message}} FOR EACH ROW WHEN (OLD.queue = {})
    EXECUTE FUNCTION sticky_refuse()"""
"""The database refuses whatever ends a message of one queue."""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@contextmanager
def impaired(server: DatabaseRecords, how: Ability, queues: Iterable[str]) -> Iterator[bool]:
    """See `OwnServer.impaired`."""
    if how is Ability.DEADLOCK:
        yield _deadlock(server)
        return
    with server.link(TIMEOUT) as link:
        match how:
            case Ability.LOCK:
                link.run("BEGIN")
                link.run(TABLES.fill("LOCK TABLE {message} IN ACCESS EXCLUSIVE MODE"))
                yield True
            case Ability.HOLD:
                link.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
                link.rows("SELECT pg_current_xact_id()")  # no vacuum removes a row that is deleted from now on
                yield True
            case Ability.READ_ONLY:
                _set_read_only(link, "on")
                try:
                    yield True
                finally:
                    _set_read_only(link, "off")
            case Ability.SPOIL:
                link.run(REFUSE)
                link.run(TABLES.fill(TRIGGER.format(queue_number(next(iter(queues))))))
                try:
                    yield True
                finally:
                    link.run(TABLES.fill("DROP TRIGGER sticky_refuse ON {message}"))
            case Ability.DISCONNECT:
                yield bool(link.rows(OTHERS)[0][0])
            case _:
                raise ValueError(f"PostgreSQL cannot be impaired so: {how}")


def _set_read_only(link: Link, value: str) -> None:
    """Change it for all connections, also open ones; the server has taken the change when this returns."""
    link.run(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    link.rows("SELECT pg_reload_conf()")
    wait_until(lambda: link.rows("SHOW default_transaction_read_only") == [(value,)], TIMEOUT)


def _deadlock(server: DatabaseRecords) -> bool:
    """Wait with somebody in a circle; return whether the server has ended that transaction."""
    with server.link() as counter:
        before = counter.rows(DEADLOCKS)[0][0]
        with suppress(BrokerUnavailable), server.link(TIMEOUT) as link:  # nobody came: the statement timed out
            _wait_in_a_circle(link)
        return _within_limit(lambda: counter.rows(DEADLOCKS)[0][0] > before)


def _wait_in_a_circle(link: Link) -> None:
    """Lock all messages, wait until somebody waits for one, then want all fences.

    Of those that wait in a circle, the server ends the one whose `deadlock_timeout` is over first.
    """
    link.run("BEGIN")
    link.run(f"SET LOCAL deadlock_timeout = '{TIMEOUT:g}s'")
    link.run(f"SET LOCAL statement_timeout = '{LIMIT:g}s'")
    link.run(TABLES.fill("SELECT 1 FROM {message} FOR UPDATE"))
    if _within_limit(lambda: link.rows(WAITING)[0][0] > 0):
        link.run(TABLES.fill("SELECT 1 FROM {fence} FOR UPDATE"))


def _within_limit(happens: Callable[[], bool]) -> bool:
    try:
        return wait_until(happens, LIMIT)
    except AssertionError:
        return False
