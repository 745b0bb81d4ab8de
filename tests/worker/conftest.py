"""Fixtures for tests of real worker processes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from harness.app import AppConfig
from harness.cluster import backend_cluster, broker_cluster, worker_cluster
from harness.fleet import Fleet
from harness.host import TestHost
from harness.jobs_fleet import JOB_CONF, JobsFleet
from harness.keyed_fleet import CONF
from harness.kinds import KindsFleet
from harness.placed_fleet import PlacedFleet
from harness.standing import clear
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryWorkerCluster,
    celery_backend_cluster_config,
    celery_broker_cluster_config,
    celery_setup,
    celery_setup_cls,
    celery_worker_cluster_config,
)

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.valkey import ValkeyServer

# The pytest-celery plugin is disabled; these are the fixtures that the tests use from it.
__all__ = [
    "celery_backend_cluster_config",
    "celery_broker_cluster_config",
    "celery_setup",
    "celery_setup_cls",
    "celery_worker_cluster_config",
]


@pytest.fixture
def celery_broker_cluster(redis_url: str) -> CeleryBrokerCluster:
    """The real Redis."""
    return broker_cluster(redis_url)


@pytest.fixture
def celery_backend_cluster(redis_url: str) -> CeleryBackendCluster:
    """The real Redis."""
    return backend_cluster(redis_url)


@pytest.fixture
def celery_setup_app(cluster_fleet: Fleet) -> Celery:
    """The app of the fleet: the same tasks as in its workers."""
    return cluster_fleet.app


@pytest.fixture
def celery_worker_cluster(cluster_fleet: Fleet) -> CeleryWorkerCluster:
    """Two workers."""
    return worker_cluster(cluster_fleet.app, cluster_fleet.worker("w1"), cluster_fleet.worker("w2"))


@pytest.fixture
def cluster_fleet(
    fleet: Callable[..., Fleet],
    celery_broker_cluster: CeleryBrokerCluster,
    celery_backend_cluster: CeleryBackendCluster,
) -> Fleet:
    """The fleet of the cluster's workers: plain Celery on the cluster's broker and result backend."""
    return fleet(
        keyed=False,
        broker=celery_broker_cluster[0].config()["url"],
        backend=celery_backend_cluster[0].config()["url"],
        conf={"task_acks_late": True, "task_reject_on_worker_lost": True},
    )


@pytest.fixture
def jobs_fleet(guard: Guard, valkey: Callable[..., ValkeyServer], tmp_path: Path) -> Iterator[Callable[..., JobsFleet]]:
    """Makes fleets with jobs, each on a server of its own, or at `broker`."""
    fleets: list[JobsFleet] = []

    def make(server: ValkeyServer | None = None, *, broker: str | None = None, **settings: Any) -> JobsFleet:
        directory = tmp_path / f"jobs{len(fleets)}"
        directory.mkdir()
        conf = {**CONF, **JOB_CONF, "sticky_runtime_dir": str(directory / "run"), **settings}
        url = broker or (valkey() if server is None else server).url
        fleets.append(JobsFleet(guard, directory, AppConfig(url, directory / "history.jsonl", conf=conf)))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture(scope="module")
def shared_kinds(
    guard: Guard, redis_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., KindsFleet]]:
    """Makes the fleet that all tests of a module share. Each test uses its own keys and injects no faults."""
    fleets: list[KindsFleet] = []

    def make(conf: dict[str, Any] | None = None) -> KindsFleet:
        clear(redis_database)
        fleets.append(KindsFleet(guard, tmp_path_factory.mktemp("kinds"), redis_database, conf))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()
    clear(redis_database)


@pytest.fixture
def kinds(guard: Guard, valkey: Callable[..., ValkeyServer], tmp_path: Path) -> Iterator[Callable[..., KindsFleet]]:
    """Makes fleets for one test, each on its own server: a module's shared fleet may use the session's database."""
    fleets: list[KindsFleet] = []

    def make(conf: dict[str, Any] | None = None) -> KindsFleet:
        directory = tmp_path / f"kinds{len(fleets)}"
        directory.mkdir()
        fleets.append(KindsFleet(guard, directory, valkey().url, conf))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture
def placed(guard: Guard, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., PlacedFleet]]:
    """Makes a fleet of one placed keyspace: `placed("jumped", broker=…, **settings)`."""
    fleets: list[PlacedFleet] = []

    def make(keyspace: str, *, broker: str | None = None, **settings: Any) -> PlacedFleet:
        directory = tmp_path / f"placed{len(fleets)}"
        directory.mkdir()
        broker = broker or request.getfixturevalue("redis_url")
        fleets.append(PlacedFleet(guard, directory, broker, keyspace, **settings))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"k{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TestHost]]:
    """Starts job hosts, which log to `w1.log`: `make_host(app="harness.host_app", trust=600.0)`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("STICKY_JOB_LOG", "")
    monkeypatch.setenv("CELERY_LOG_FILE", str(tmp_path / "%n.log"))
    monkeypatch.setenv("CELERY_LOG_LEVEL", str(logging.WARNING))  # a worker in the tests' process leaves its own
    hosts: list[TestHost] = []

    def make(**options: Any) -> TestHost:
        hosts.append(TestHost(tmp_path / "jobs.log", **options))
        return hosts[-1]

    yield make
    for made in hosts:
        made.process.kill()
        made.wait_exit()


@pytest.fixture
def host(make_host: Callable[..., TestHost]) -> TestHost:
    """A job host of the app `harness.host_app`."""
    return make_host()
