"""Fixtures for tests of real worker processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery
from harness.cluster import backend_cluster, broker_cluster, worker_cluster
from harness.fleet import Fleet
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

# The plugin of pytest-celery is off, so the fixtures taken from it are named one by one.
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
    """What the cluster's workers run: plain Celery on the cluster's broker and result backend."""
    return fleet(
        keyed=False,
        broker=celery_broker_cluster[0].config()["url"],
        backend=celery_backend_cluster[0].config()["url"],
        conf={"task_acks_late": True, "task_reject_on_worker_lost": True},
    )
