"""What plain keyspaces cost a worker: two connections in all, and none for another keyspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import many_jobs_app
from harness.app import AppConfig
from harness.fleet import Fleet

from celery_sticky.cli.session import Session
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.ownership.view import View
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess

MANY = 40
MANY_WITH_JOBS = 20
MORE_THAN_STOCK = 2
"""Connections of an idle worker beyond those of a stock one: the courier's and the members'."""
MORE_WITH_JOBS = 1
"""Connections beyond those if there are jobs: the keepers'."""


@pytest.fixture
def server(valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    return valkey()


@pytest.fixture
def fleet(guard: Guard, server: ValkeyServer, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(keyspaces: int) -> Fleet:
        names = [DEFAULT_KEYSPACE, *(f"k{number}" for number in range(1, keyspaces))]
        conf = {
            "sticky_keyspaces": dict.fromkeys(names, 4),
            "sticky_runtime_dir": str(tmp_path / "run"),
        }
        config = AppConfig(
            server.url, tmp_path / f"{keyspaces}.jsonl", conf=conf if keyspaces else {}, keyed=keyspaces > 0
        )
        made.append(Fleet(guard, tmp_path, config))
        return made[-1].init() if keyspaces else made[-1]

    yield make
    for one in made:
        one.teardown()


def views(fleet: Fleet) -> dict[str, View]:
    """Return the documents of all keyspaces."""
    with Session(fleet.app) as session:
        found = {keyspace: session.store(keyspace).read().view for keyspace in session.keyspaces}
    return {keyspace: view for keyspace, view in found.items() if view is not None}


def all_owned(fleet: Fleet, keyspaces: int) -> bool:
    found = views(fleet)
    return len(found) == keyspaces and not any(view.unowned or view.owner != view.target for view in found.values())


def cost(worker: WorkerProcess, server: ValkeyServer) -> tuple[int, int, int]:
    """Return threads, sockets and connections of an idle worker, which is the only client of its server."""
    threads = len(os.listdir(f"/proc/{worker.pid}/task"))
    files = [Path(f"/proc/{worker.pid}/fd/{name}") for name in os.listdir(f"/proc/{worker.pid}/fd")]
    sockets = sum(os.readlink(file).startswith("socket:") for file in files if file.is_symlink())
    with server.client() as client:
        connections = sum(one["cmd"] != "client|list" for one in client.client_list())
    return threads, sockets, connections


def idle_cost(make: Callable[..., Fleet], server: ValkeyServer, keyspaces: int) -> tuple[int, int, int]:
    """Start a worker, wait until it is idle, and return what it costs."""
    fleet = make(keyspaces)
    worker = fleet.worker(f"w{keyspaces}", pool="threads")
    if keyspaces:
        wait_until(lambda: all_owned(fleet, keyspaces), 60, "all slots have an owner")
    return settled_cost(fleet, worker, server)


def settled_cost(fleet: Fleet, worker: WorkerProcess, server: ValkeyServer) -> tuple[int, int, int]:
    """Return what a worker costs when it has come to rest; then stop it."""
    fleet.app.pool.force_close_all()
    seen = [(0, 0, 0)]

    def settled() -> bool:
        seen.append(cost(worker, server))
        return len(seen) > 8 and len(set(seen[-8:])) == 1

    wait_until(settled, 60, "it has come to rest", interval=0.5)
    assert worker.stop() == 0
    return seen[-1]


def cost_with_jobs(make: Callable[..., Fleet], server: ValkeyServer, keyspaces: int) -> tuple[int, int, int]:
    """Start a worker, run a job in each keyspace, and return what the worker costs meanwhile."""
    fleet = make(keyspaces)
    jobs = many_jobs_app.register(fleet.app).jobs
    worker = fleet.worker(f"j{keyspaces}", pool="threads", app="harness.many_jobs_app")
    for keyspace in fleet.app.conf.sticky_keyspaces:
        jobs.dispatch(many_jobs_app.NAME, f"of {keyspaces}", keyspace=keyspace, timeout=60)  # returns when it runs
    jobs.close()
    return settled_cost(fleet, worker, server)


def test_a_keyspace_costs_no_thread_and_no_connection(fleet: Callable[..., Fleet], server: ValkeyServer) -> None:
    one, many = (idle_cost(fleet, server, keyspaces) for keyspaces in (1, MANY))
    assert many == one, "threads, sockets and connections"


def test_an_idle_worker_of_a_plain_keyspace_has_two_connections_more_than_a_stock_one(
    fleet: Callable[..., Fleet], server: ValkeyServer
) -> None:
    stock, plain = (idle_cost(fleet, server, keyspaces) for keyspaces in (0, 1))
    assert plain[2] <= stock[2] + MORE_THAN_STOCK, (plain, stock)


def test_a_keyspace_with_jobs_costs_neither(fleet: Callable[..., Fleet], server: ValkeyServer) -> None:
    plain = idle_cost(fleet, server, 1)
    one, many = (cost_with_jobs(fleet, server, keyspaces) for keyspaces in (1, MANY_WITH_JOBS))
    assert many == one, "threads, sockets and connections"
    assert one[2] == plain[2] + MORE_WITH_JOBS, (one, plain)
