"""Fixtures for tests that need a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.sql_broker import OnSql

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.postgresql import PostgresServer
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


@pytest.fixture
def postgres(guard: Guard) -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop."""
    server = PostgresServer(guard).start()
    yield server
    server.teardown()


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
