"""Databases as the servers of the store contract."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Generic

from celery_sticky.errors import StoreUnavailable
from celery_sticky.sql import Address, Database
from celery_sticky.sql.tables import DEFAULT
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.store_contract import AnyStore, StoreServer
from harness.sql_servers import connect

TABLES = (
    *("view", "heartbeat", "revoked", "token", "enlisted", "key_claim", "pin", "lost_pin", "moved"),
    *("job_space", "job_slot", "job", "job_note", "job_dead", "job_answer", "job_tick"),
)
OTHERS = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
"""Ends, or finds, every other connection to a database."""


def database(url: str, timeout: float = 20.0, prefix: str = DEFAULT) -> Database:
    """Return a connection for a store."""
    return Database(Address.parse(url), timeout=timeout, unavailable=StoreUnavailable, prefix=prefix)


def end_others(url: str) -> None:
    """End every other connection to a database."""
    with connect(url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute(OTHERS[Address.parse(url).kind])
        if url.startswith("mysql"):
            for row in cursor.fetchall():
                cursor.execute("KILL %s", row)


class InDatabase(StoreServer[AnyStore], Generic[AnyStore]):
    """An empty database, which the test shares with others or may not stop."""

    def __init__(self, url: str, store: Callable[..., AnyStore]) -> None:
        self.url, self._store = url, store
        with closing(database(url)) as own:
            for table in TABLES:
                own.run(f"DELETE FROM {{{table}}}")

    def connect(self, keyspace: str, prefix: str) -> AnyStore:
        return self._store(database(self.url), keyspace, prefix=prefix)


class OnServer(InDatabase[AnyStore], Generic[AnyStore]):
    """A database whose connections can be ended."""

    def cut(self) -> None:
        end_others(self.url)


class OnPrivateServer(OnServer[AnyStore], Generic[AnyStore]):
    """A server that may be stopped."""

    def __init__(self, server: PostgresServer, store: Callable[..., Any]) -> None:
        super().__init__(server.url, store)
        self._server = server

    def stop(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()


class InFile(InDatabase[AnyStore], Generic[AnyStore]):
    """A SQLite file."""

    def restart(self) -> None:
        """Do nothing: there is no server between the stores and the file."""


def in_database(url: str, store: Callable[..., AnyStore]) -> StoreServer[AnyStore]:
    """Return an empty database of any kind as the server of a store."""
    kind = InFile if Address.parse(url).kind == "sqlite" else OnServer
    return kind(url, store)
