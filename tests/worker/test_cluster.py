"""The harness itself: plain Celery workers under pytest-celery's cluster fixtures, as local processes."""

from __future__ import annotations

import signal

import pytest
from harness.fleet import Fleet
from pytest_celery import CeleryTestSetup

from celery_sticky.testing.waiting import wait_until

pytestmark = pytest.mark.smoke


def test_a_plain_task_runs_on_a_worker_of_the_cluster(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(control=True)
    assert celery_setup.app.tasks["plain"].delay(7).get(timeout=30) == 7


def test_the_other_worker_runs_tasks_after_one_was_killed(celery_setup: CeleryTestSetup, cluster_fleet: Fleet) -> None:
    first, second = celery_setup.worker_cluster
    first.kill(signal.SIGKILL)
    assert first.container.status == "exited"

    cluster_fleet.send_plain(1).get(timeout=30)
    started = cluster_fleet.started("plain", 1)
    assert started is not None
    assert started.worker == second.hostname()
    assert cluster_fleet.judge().ok


def test_a_killed_worker_can_be_started_again(celery_setup: CeleryTestSetup, cluster_fleet: Fleet) -> None:
    first, second = celery_setup.worker_cluster
    first.kill()
    first.restart()
    second.kill(signal.SIGTERM)
    wait_until(lambda: second.container.status == "exited", timeout=30)

    cluster_fleet.send_plain(1).get(timeout=30)
    started = cluster_fleet.started("plain", 1)
    assert started is not None
    assert started.worker == first.hostname()
