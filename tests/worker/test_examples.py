"""The examples, as their pages tell people to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from harness.pages import ROOT

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

EXAMPLES = ROOT / "examples"


def environ(broker: str) -> dict[str, str]:
    return {**os.environ, "BROKER_URL": broker, "PYTHONPATH": str(ROOT), "C_FORCE_ROOT": "1", "PYTHONUNBUFFERED": "1"}


def run(guard: Guard, folder: Path, broker: str, *words: str, timeout: float = 100) -> tuple[int, str]:
    """Run Python in the folder of an example, under guard; return exit status and output."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environ(broker),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    guard.watch(process.pid)
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
        guard.forget(process.pid)
    return process.returncode, output


@pytest.fixture
def broker(valkey: Callable[..., ValkeyServer]) -> str:
    """A server that is the example's alone."""
    return valkey().url


def test_each_customer_s_orders_are_charged_in_order_though_a_worker_is_killed(guard: Guard, broker: str) -> None:
    status, output = run(guard, EXAMPLES / "per_customer_order", broker, "run.py")
    assert status == 0, output
    assert "is killed (SIGKILL)" in output
    assert " 0 lost, 0 overlapping, 0 out of order" in output
    numbers = re.findall(r"^(\w{3}): ((?:\d+ )+)", output, re.MULTILINE)
    assert len(numbers) == 6
    for customer, line in numbers:
        charged = [int(number) for number in line.split()]
        assert charged == sorted(charged) and set(charged) == set(range(1, 21)), (customer, charged)
    with redis.Redis.from_url(broker) as client:
        assert not list(client.scan_iter("per-customer-order*")), "it leaves nothing behind"


def test_each_tenant_has_one_sync_though_tenants_and_workers_come_and_go(guard: Guard, broker: str) -> None:
    status, output = run(guard, EXAMPLES / "tenant_sync", broker, "run.py")
    assert status == 0, output
    assert re.search(
        r"^six tenants\n(  \S+ syncs .*\n){2}bob was removed, gus was added\n(  \S+ syncs .*\n){1,2}", output
    ), output
    assert re.search(r"was killed \(SIGKILL\)\n  \S+ syncs ada cyd dan eve fay gus\n", output), output
    assert ", 0 while another of the same tenant ran" in output
    assert re.search(r"^[0-3] pages were read again after the kill, 0 were left out$", output, re.MULTILINE), output
    with redis.Redis.from_url(broker) as client:
        assert not list(client.scan_iter("tenant-sync*")), "it leaves nothing behind"


def test_reverse_routing_reaches_a_websocket_client_wherever_it_is(guard: Guard, broker: str) -> None:
    status, output = run(guard, EXAMPLES / "reverse_routing", broker, "run.py")
    assert status == 0, output
    told = re.findall(r"^  to (\w{3}): delivered by (\w+)@", output, re.MULTILINE)
    assert told[:6] == [
        *((name, "one") for name in ("ada", "bob", "cyd")),
        *((name, "two") for name in ("dan", "eve", "fay")),
    ]
    assert len(told) == 15 and {front_end for _, front_end in told[6:]} == {"two"}, output
    assert "fay has reconnected at two" in output and told[7] == ("fay", "two"), output
    assert "gus, who is not connected: refused" in output
    assert output.endswith("15 texts sent, 0 of 6 clients missed one or got another's\n"), output
    with redis.Redis.from_url(broker) as client:
        assert not list(client.scan_iter()), "it leaves nothing behind"


def test_nobody_gets_two_mails_from_a_service_with_a_database_alone(guard: Guard) -> None:
    status, output = run(guard, EXAMPLES / "sql_only", "", "run.py")
    assert status == 0, output
    assert "60 users signed up, 10 sign-ups were refused\nworker one is killed (SIGKILL)\n" in output
    sent = re.search(
        r"^(\d+) users got their mail, 0 got it twice\n(\d+) mails may have been sent", output, re.MULTILINE
    )
    assert sent, output
    assert int(sent[1]) + int(sent[2]) >= 60 >= int(sent[1])


def test_the_quickstart_runs_each_tenant_on_one_worker(guard: Guard, broker: str, tmp_path: Path) -> None:
    folder = EXAMPLES / "quickstart"
    app = ("-m", "celery", "-A", "shop")
    assert run(guard, folder, broker, *app, "sticky", "init")[0] == 0
    workers = []
    with (tmp_path / "workers.log").open("wb") as log:
        for name in ("one", "two"):
            words = [sys.executable, *app, "worker", "-n", f"{name}@%h", "-c", "4"]
            workers.append(
                subprocess.Popen(words, cwd=folder, env=environ(broker), stdout=log, stderr=log, start_new_session=True)
            )
            guard.watch(workers[-1].pid)
    try:
        wait_until(lambda: shares(guard, folder, broker) == 2, 60, "two workers share the slots", 0.5)
        status, output = run(guard, folder, broker, "send.py")
        assert status == 0, output
        assert len(re.findall(r"^\w{3}: 5 pages, all by (?:one|two)@\S+$", output, re.MULTILINE)) == 4
        assert "no key: pong" in output
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(timeout=60)
            guard.forget(worker.pid)


def shares(guard: Guard, folder: Path, broker: str) -> int:
    """Return how many workers have a share of the slots, once all of those are owned and none moves."""
    _, output = run(guard, folder, broker, "-m", "celery", "-A", "shop", "sticky", "status")
    settled = "all owned" in output and "moving" not in output
    return len(re.findall(r"^\S+@\S+ +active +[1-9]", output, re.MULTILINE)) if settled else 0
