"""Fixtures for tests that need a real server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.sql_broker import OnSql
from harness.sql_servers import EmbeddedPostgres, own_database, standing

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.valkey import ValkeyServer


@pytest.fixture
def server(valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    """A private server for one test."""
    return valkey()


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    """A client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture
def commands(client: Any) -> Callable[[], int]:
    """Returns how many commands that server has processed so far."""
    return lambda: int(client.info("stats")["total_commands_processed"])


@pytest.fixture(scope="session")
def postgresql_url(guard: Guard) -> Iterator[str]:
    """A database of this session on a PostgreSQL server: the standing one, or an embedded one."""
    url = standing("postgresql", os.environ)
    embedded = EmbeddedPostgres(guard).start() if url is None else None
    with own_database(url or (embedded.url if embedded else "")) as own:
        yield own
    if embedded is not None:
        embedded.teardown()


@pytest.fixture
def postgres(guard: Guard) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server that the test may stop."""
    server = EmbeddedPostgres(guard).start()
    yield server
    server.teardown()


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """A database of this session on a MariaDB server; the test is skipped if none answers."""
    url = standing("mysql", os.environ)
    if url is None:
        pytest.skip("no MariaDB answers on 127.0.0.1:3306; STICKY_TEST_MARIADB names another")
    with own_database(url) as own:
        yield own


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A database in a new file."""
    return f"sqlite:///{tmp_path}/queues.db"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def sql_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["postgresql", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind that has a server."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def on_sql(sql_url: str) -> Iterator[OnSql]:
    """An empty broker in a database of each kind."""
    broker = OnSql(sql_url)
    yield broker
    broker.close()
