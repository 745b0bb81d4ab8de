"""`memory://`: keyed tasks run in one process, without any server and without Redis' client library."""

# Celery has no types.
# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from harness.bare_worker import assemble
from harness.in_process import in_process_worker
from harness.pages import ROOT

from celery_sticky import InvalidSettings, Keyspace, Sticky, jump
from celery_sticky.queues.memory import process_broker
from celery_sticky.testing.waiting import wait_until

POOLS = ("solo", "threads")


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    made.conf.update(sticky_key_prefix=f"memory-{uuid.uuid4().hex}", sticky_slots=16, sticky_settle=0.0)
    Sticky(made)
    yield made
    made.close()


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_of_a_key_run_in_order_one_at_a_time(app: Any, pool: str) -> None:
    running: set[str] = set()
    ran: list[tuple[str, int]] = []

    @app.task(name="sync", key="tenant", shared=False, bind=True)
    def sync(self: Any, tenant: str, page: int) -> str:
        assert tenant not in running
        running.add(tenant)
        time.sleep(0.002)
        ran.append((tenant, page))
        running.discard(tenant)
        assert self.request.sticky.key == tenant and self.request.sticky.epoch > 0
        return f"{tenant} {page}"

    results = [sync.delay(f"t-{page % 4}", page) for page in range(40)]  # before there is a worker
    with in_process_worker(app, pool):
        results += [sync.delay(f"t-{page % 4}", page) for page in range(40, 80)]
        assert [result.get(timeout=20) for result in results] == [f"t-{page % 4} {page}" for page in range(80)]
    for first in range(4):
        assert [page for tenant, page in ran if tenant == f"t-{first}"] == list(range(first, 80, 4))


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_is_ready_within_a_moment_and_the_next_one_too(app: Any, pool: str) -> None:
    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str) -> str:
        return tenant

    for _ in range(2):
        began = time.monotonic()
        with in_process_worker(app, pool):
            assert sync.delay("t-7").get(timeout=20) == "t-7"
            assert time.monotonic() - began < 5, "nobody waits for workers that may hold a lease"


@pytest.mark.parametrize("pool", POOLS)
def test_retries_countdowns_and_tasks_that_send_tasks_work(app: Any, pool: str) -> None:
    ran: list[str] = []

    @app.task(name="child", key="tenant", shared=False)
    def child(tenant: str) -> None:
        ran.append("child")

    @app.task(name="flaky", key="tenant", shared=False, bind=True, max_retries=1)
    def flaky(self: Any, tenant: str) -> None:
        ran.append(f"try {self.request.retries}")
        if not self.request.retries:
            raise self.retry(countdown=0.05)
        child.delay(tenant)

    with in_process_worker(app, pool):
        flaky.apply_async(("t-7",), countdown=0.05)
        wait_until(lambda: "child" in ran, 20)
    assert ran == ["try 0", "try 1", "child"]


@pytest.mark.parametrize("pool", POOLS)
def test_ordinary_tasks_run_beside_keyed_ones(app: Any, pool: str) -> None:
    at_once: list[int] = []
    running: list[str] = []

    def run(name: str) -> str:
        running.append(name)
        at_once.append(len(running))
        time.sleep(0.05)
        running.remove(name)
        return name

    def run_too(name: str) -> str:
        return run(name)

    keyed = app.task(run, name="keyed", key="name", shared=False)
    plain = app.task(run_too, name="plain", shared=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    with in_process_worker(app, pool):
        results = [task.delay(f"{task.name} {n}") for n in range(5) for task in (keyed, plain)]
        assert len({result.get(timeout=20) for result in results}) == 10
    if pool == "solo":
        assert set(at_once) == {1}, "a solo pool runs one task at a time"


@pytest.mark.parametrize("pool", POOLS)
def test_messages_are_fetched_while_a_task_runs(app: Any, pool: str) -> None:
    sticky, broker = Sticky.of(app), process_broker(app.conf.sticky_key_prefix)

    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str) -> bool:
        if tenant == "t-1":
            sync.delay("t-2")
            wait_until(lambda: not broker.slots["default", sticky.slot_for("t-2")].waiting, 10)
        return True

    assert sticky.slot_for("t-1") != sticky.slot_for("t-2")
    with in_process_worker(app, pool):
        assert sync.delay("t-1").get(timeout=20)


def test_a_worker_of_another_process_may_have_the_same_name(app: Any) -> None:
    app.conf.broker_url = "memory://"
    program = WITHOUT_REDIS.replace("pool=pool,", "pool=pool, hostname='same@here',").replace(
        "app.conf.update(", "app.conf.update(sticky_key_prefix=sys.argv[1], "
    )
    with in_process_worker(app, "threads", hostname="same@here"):
        done = python(program, app.conf.sticky_key_prefix)
    assert done.stdout == "ran\n", done.stdout + done.stderr


def test_messages_keep_their_priority(app: Any) -> None:
    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str) -> None: ...

    for priority in (9, 0, 3, None):
        sync.apply_async(("t-7",), priority=priority)
    prefix = app.conf.sticky_key_prefix
    slot = process_broker(prefix).slots["default", Sticky.of(app).slot_for("t-7")]
    assert [message.priority for message in slot.waiting] == [0, 0, 3, 9]


def test_a_placed_keyspace_works_too(app: Any) -> None:
    Sticky.of(app).keyspace(Keyspace("clients", assign=jump))

    @app.task(name="call", key="client", keyspace="clients", shared=False, bind=True)
    def call(self: Any, client: str) -> str:
        return str(self.request.sticky.worker)

    with in_process_worker(app, "threads") as running:
        wait_until(lambda: running.sticky.lease.trusted("clients"), 10)
        assert call.delay("c-1").get(timeout=20) == running.hostname


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_pool_that_leaves_the_process_or_its_threads_is_refused(app: Any, pool: str) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    with pytest.raises(InvalidSettings, match=r"memory://.*memory of one process.*--pool=solo or --pool=threads"):
        assemble(app, pool)


def test_jobs_are_refused_because_they_run_in_another_process(app: Any) -> None:
    @Sticky.of(app).job("feed", keyspace="feeds")
    async def feed(job: Any) -> None: ...

    with pytest.raises(InvalidSettings, match=r"feeds have jobs.*memory://.*in the memory of this process.*server"):
        assemble(app, "threads")
    app.conf.sticky_keyspaces = ["default"]
    del vars(Sticky.of(app).wiring)["settings"]
    assemble(app, "threads")


def test_nothing_is_left_of_a_worker_that_ended(app: Any) -> None:
    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str) -> None: ...

    with in_process_worker(app, "threads"):
        sync.delay("t-7").get(timeout=20)
    descriptors, threads = held("fd"), held("task")
    for pool in POOLS:
        with in_process_worker(app, pool):
            sync.delay("t-7").get(timeout=20)
    wait_until(lambda: held("fd") <= descriptors and held("task") <= threads, 20)


def held(what: str) -> int:
    """Count this process's descriptors or threads."""
    gc.collect()
    return len(os.listdir(f"/proc/self/{what}"))


WITHOUT_REDIS = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "redis":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_sticky import Sticky

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.update(sticky_settle=0.0)
Sticky(app)

@app.task(key="tenant")
def sync(tenant, page):
    return f"{tenant} {page}"

for pool in ("solo", "threads"):
    with start_worker(app, pool=pool, perform_ping_check=False):
        results = [sync.delay("t-7", page) for page in range(20)]
        assert [result.get(timeout=20) for result in results] == [f"t-7 {page}" for page in range(20)]
assert not [name for name in sys.modules if name.partition(".")[0] == "redis"]
print("ran")
"""


def python(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("broker", ["memory://", "sticky+sqlite:///{}/shop.db"])
def test_a_worker_runs_where_redis_cannot_be_imported(tmp_path: Path, broker: str) -> None:
    done = python(WITHOUT_REDIS.replace("memory://", broker.format(tmp_path), 1))
    assert done.stdout == "ran\n", done.stdout + done.stderr


@pytest.mark.parametrize("broker", ["memory://", "sticky+sqlite:///{}/shop.db"])
def test_the_command_line_works_where_redis_cannot_be_imported(tmp_path: Path, broker: str) -> None:
    run = """
from click.testing import CliRunner
from celery.bin.base import CLIContext
from celery_sticky.cli.main import sticky
for words in (["doctor", "--timeout", "0.01"], ["status", "--timeout", "0.01"], ["init"]):
    result = CliRunner().invoke(sticky, words, obj=CLIContext(app, True, None))
    assert result.exit_code == 0, result.output
print("ran")
"""
    without_redis = WITHOUT_REDIS.replace("memory://", broker.format(tmp_path), 1)
    done = python(without_redis.partition("for pool")[0] + run)
    assert done.stdout == "ran\n", done.stdout + done.stderr


def test_two_threads_that_send_at_once_reach_the_same_queue(app: Any) -> None:
    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str, page: int) -> None: ...

    together = threading.Barrier(4)

    def send() -> None:
        together.wait(20)
        for page in range(25):
            sync.delay("t-7", page)

    with ThreadPoolExecutor(4) as threads:
        for sent in [threads.submit(send) for _ in range(4)]:
            sent.result()
    slot = process_broker(app.conf.sticky_key_prefix).slots["default", Sticky.of(app).slot_for("t-7")]
    assert len(slot.waiting) == 100
