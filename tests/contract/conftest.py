"""Fixtures for tests of what only a real server can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_sticky.testing.servers.valkey import ValkeyServer


@pytest.fixture
def server(valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    """A server of the test's own."""
    return valkey()


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    """A client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture
def commands(client: Any) -> Callable[[], int]:
    """Tells how many commands that server has taken so far."""
    return lambda: int(client.info("stats")["total_commands_processed"])
