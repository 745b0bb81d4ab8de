"""Fixtures for all tests: real servers, and an environment without the developer's own settings."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.app import AppConfig
from harness.fleet import Fleet
from harness.keyed_fleet import CONF, KeyedFleet
from harness.sql_servers import own_database, standing
from harness.standing import claimed_database, clear, standing_server
from harness.ways import Run
from hypothesis import settings

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.processes import running
from celery_sticky.testing.servers import given
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.servers.valkey import ValkeyServer

FLOORS = ("unit", "contract", "docs", "worker", "system")
HERE = Path(__file__).parent

# No deadline: a loaded machine must not fail a test. With CI set, Hypothesis always tries the same examples.
settings.register_profile("tests", settings(), deadline=None)
settings.load_profile("tests")

# The app of a test must not read these, and worker processes must not inherit them.
for _name in [name for name in os.environ if name.startswith(("CELERY_", "STICKY_APP_"))]:
    del os.environ[_name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        floor = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        if floor in FLOORS:
            item.add_marker(floor)


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    """Kills the processes that the tests started, however the tests end."""
    guard = Guard()
    yield guard
    guard.close()


@pytest.fixture(scope="session")
def redis_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database on a server that only this session uses: the running one, or an embedded one."""
    standing = standing_server(os.environ)
    if standing is not None:
        with claimed_database(standing) as address:
            if address is not None:
                yield address
                return
    server = ValkeyServer(request.getfixturevalue("guard"))
    yield server.start().url
    server.teardown()


@pytest.fixture
def redis_url(redis_database: str) -> Iterator[str]:
    """The address of an empty database on a real server."""
    clear(redis_database)
    yield redis_database
    clear(redis_database)


@pytest.fixture
def valkey(guard: Guard) -> Iterator[Callable[..., ValkeyServer]]:
    """Starts private servers: `valkey(unix=False, appendonly=False, config=None)` → a started `ValkeyServer`."""
    servers: list[ValkeyServer] = []

    def start(**options: Any) -> ValkeyServer:
        server = ValkeyServer(guard, **options)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.teardown()


@pytest.fixture
def run(guard: Guard) -> Iterator[Run]:
    """Starts a server process that ends with the test: `run(command)` → pid."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> int:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        processes.append(process)
        guard.watch(process.pid)
        return process.pid

    yield run
    for process in processes:
        if running(process.pid):
            process.kill()
        process.wait(timeout=10)
        guard.forget(process.pid)


@pytest.fixture
def fleet(guard: Guard, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Fleet]]:
    """Makes fleets: `fleet(broker=…, backend=…, conf={…}, keyed=True)`; broker and backend default to `redis_url`."""
    fleets: list[Fleet] = []

    def make(**options: Any) -> Fleet:
        options.setdefault("broker", request.getfixturevalue("redis_url"))
        options.setdefault("backend", options["broker"])
        directory = tmp_path / f"fleet{len(fleets)}"
        directory.mkdir()
        fleets.append(Fleet(guard, directory, AppConfig(history=directory / "history.jsonl", **options)))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture
def crew(guard: Guard, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., KeyedFleet]]:
    """Makes keyed fleets: `crew(broker=…, document=True, **settings)`; the broker defaults to `redis_url`."""
    fleets: list[KeyedFleet] = []

    def make(*, broker: str | None = None, document: bool = True, **settings: Any) -> KeyedFleet:
        broker = broker or request.getfixturevalue("redis_url")
        directory = tmp_path / f"crew{len(fleets)}"
        directory.mkdir()
        conf = {**CONF, "sticky_runtime_dir": str(directory / "run"), **settings}
        config = AppConfig(broker, directory / "history.jsonl", conf=conf)
        fleets.append(KeyedFleet(guard, directory, config, document=document))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture(scope="session")
def postgresql_url(guard: Guard) -> Iterator[str]:
    """A database of this session on a PostgreSQL server: the standing one, or an embedded one."""
    url = standing("postgresql", os.environ)
    embedded = PostgresServer(guard).start() if url is None else None
    with own_database(url or (embedded.url.removeprefix("sticky+") if embedded else "")) as own:
        yield own
    if embedded is not None:
        embedded.teardown()


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


@pytest.fixture
def on_database(tmp_path: Path, sql_url: str) -> Iterator[dict[str, Any]]:
    """A broker with tables of its own in a database of each kind: the arguments `broker` and the options of a fleet."""
    prefix = f"t{uuid.uuid4().hex[:12]}_"
    options = {"socket_timeout": 10, "table_prefix": prefix, "eviction_timeout": 10}
    broker = f"sticky+{sql_url}"
    yield {"broker": broker, "broker_transport_options": options}
    given(broker).clear(prefix)
