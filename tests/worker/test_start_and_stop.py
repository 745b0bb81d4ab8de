"""A worker that cannot reach its servers at its start: it ends when told to, in order, whatever has not begun."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from harness.fleet import Fleet

from celery_sticky.testing.server import ValkeyServer, free_port


def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


def ends_in_order(fleet: Fleet, **options: Any) -> None:
    worker = fleet.worker("w1", ready=False, **options)
    worker.wait_for_log("Cannot connect to redis")
    worker.kill(signal.SIGTERM)
    assert worker.wait(30) == 0, worker.tail()
    assert "Traceback" not in worker.log and "Unrecoverable" not in worker.log, worker.tail(60)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_it_ends_when_told_to_before_its_broker_could_be_reached(fleet: Callable[..., Fleet], pool: str) -> None:
    ends_in_order(fleet(broker=nowhere()), pool=pool)


@pytest.mark.parametrize(
    "options",
    [
        {"app": "harness.worker_app"},
        {"app": "harness.jobs_app"},
        {"app": "harness.directed_app", "args": ("--sticky-keyspaces", "tenants"), "env": {"STICKY_TEST_JOBS": "1"}},
    ],
    ids=["tasks", "jobs", "directed"],
)
def test_it_ends_when_told_to_though_its_store_can_be_reached(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer], options: dict[str, Any]
) -> None:
    made = fleet(broker=nowhere(), conf={"sticky_store": valkey().url, "sticky_settle": 0.1})
    ends_in_order(made, **options)


def test_a_cold_shutdown_before_the_broker_could_be_reached_is_as_stock(fleet: Callable[..., Fleet]) -> None:
    statuses = []
    for args in ((), ("--without-sticky",)):
        worker = fleet(broker=nowhere()).worker("w1", ready=False, args=args)
        worker.wait_for_log("Cannot connect to redis")
        worker.kill(signal.SIGQUIT)
        statuses.append(worker.wait(30))
        assert "Traceback" not in worker.log, worker.tail(60)
    assert statuses[0] == statuses[1]


@pytest.mark.parametrize("setting", ["broker", "sticky_store"])
def test_a_worker_refuses_a_list_of_servers(fleet: Callable[..., Fleet], redis_url: str, setting: str) -> None:
    listed = f"{redis_url};{nowhere()}"
    made = (
        fleet(broker=listed, backend=redis_url)
        if setting == "broker"
        else fleet(broker=redis_url, conf={setting: listed})
    )
    worker = made.worker("w1", ready=False)
    assert worker.wait(30) != 0
    assert "2 servers are listed" in worker.log and "Name one server" in worker.log, worker.tail()
