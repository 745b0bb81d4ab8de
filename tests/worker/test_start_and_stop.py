"""A worker that cannot reach its servers at its start: it ends when told to, in order, whatever has not begun."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.fleet import Fleet
from harness.refusing import FORBIDDEN, UNKNOWN, WithoutHello

from celery_sticky.testing.history import Kind
from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.servers.valkey import ValkeyServer


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
        {"app": "harness.placed_app", "args": ("--sticky-keyspaces", "tenants"), "env": {"STICKY_TEST_JOBS": "1"}},
    ],
    ids=["tasks", "jobs", "placed"],
)
def test_it_ends_when_told_to_though_its_store_can_be_reached(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer], options: dict[str, Any]
) -> None:
    made = fleet(broker=nowhere(), conf={"sticky_store": valkey().url, "sticky_settle": 0.1})
    ends_in_order(made, **options)


@pytest.mark.parametrize("app", ["harness.worker_app", "harness.jobs_app"])
def test_it_ends_when_told_to_though_its_store_was_never_there(
    fleet: Callable[..., Fleet], redis_url: str, app: str
) -> None:
    worker = fleet(broker=redis_url, conf={"sticky_store": nowhere()}).worker("w1", app=app)
    worker.wait_for_log("the store does not answer")
    assert worker.stop() == 0, worker.tail()
    assert "Traceback" not in worker.log, worker.tail(60)


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
    assert "Error: 2 servers are listed" in worker.log and "Use one server" in worker.log, worker.tail()
    assert "Traceback" not in worker.log


def test_a_server_that_deletes_keys_is_warned_of_at_start(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    broker, store = valkey(), valkey(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    worker = fleet(broker=broker.url, conf={"sticky_store": store.url}).worker("w1")
    said = worker.wait_for_log(r"WARNING.*sticky: the (\S+) \S+ has maxmemory-policy (\S+): .*noeviction")
    assert said.groups() == ("store", "allkeys-lru")
    assert "sticky: the broker" not in worker.log


@pytest.mark.parametrize("refusal", [UNKNOWN, FORBIDDEN], ids=["unknown", "forbidden"])
def test_a_server_that_refuses_hello_is_named_with_the_remedy(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer], refusal: str
) -> None:
    with WithoutHello(valkey().url, refusal) as proxy:
        worker = fleet(broker=proxy.url).worker("w1", ready=False)
        worker.wait_for_log(
            rf"WARNING.*sticky: the broker \S+ refuses HELLO \({re.escape(refusal)}\): .*Redis 6\.2 or newer.*\+hello",
            60,
        )
        worker.kill(signal.SIGTERM)
        worker.wait(30)


def test_a_lost_connection_cancels_no_keyed_task_whatever_celery_says(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    server = valkey()
    made = fleet(
        broker=server.url,
        conf={"sticky_settle": 0.1, "worker_cancel_long_running_tasks_on_connection_loss": True},
    ).init()
    worker = made.worker("w1")
    made.send("k", 1, seconds=4.0)
    made.wait_started("k", 1)
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    worker.wait_for_log("Connection to broker lost|Trying to re-establish")
    made.wait_finished()
    judged = made.judge()
    assert judged.ok and sum(event.kind is Kind.START for event in made.events()) == 1, judged.describe()


def test_a_worker_starts_without_a_folder_for_its_lock_file(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    (tmp_path / f"celery-sticky-{os.getuid()}").write_text("in the way")
    made = fleet(conf={"sticky_settle": 0.1}).init()
    worker = made.worker("w1", env={"TMPDIR": str(tmp_path)})
    assert "no folder for lock files" in worker.log and "sticky_runtime_dir" in worker.log
    made.send("k", 1)
    made.wait_finished()
    refused = fleet(conf={"sticky_runtime_dir": str(tmp_path / f"celery-sticky-{os.getuid()}" / "x")})
    worker = refused.worker("w2", ready=False)
    assert worker.wait(30) != 0 and "Error: sticky_runtime_dir is " in worker.log, worker.tail()
    assert "Traceback" not in worker.log
