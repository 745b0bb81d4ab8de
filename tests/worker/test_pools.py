"""All five pools keep the promises, also while the pool itself changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from harness.kinds import SLOTS, KindsFleet

from celery_sticky.testing.judge import judge
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess

KEYS, EACH = 10, 20
SHORT = {"sticky_lease_ttl": 1.8, "sticky_lease_margin": 0.5}


def send_all(fleet: KindsFleet, key: str, each: int, seconds: float = 0.0, *, first: int = 0) -> None:
    for n in range(first, first + each):
        for one in range(KEYS):
            fleet.send(f"{key}-{one}", n, seconds)


def pool_of(worker: WorkerProcess) -> set[int]:
    """Return the children that run tasks."""
    return set(worker.children) & set(worker.processes)


@pytest.mark.smoke
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_pool_runs_every_key_in_order_one_at_a_time_once(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=4)
    for n in range(EACH):
        for one in range(KEYS):
            fleet.send(f"{key}-{one}", n, 0.005)
        fleet.send_plain(n)
    fleet.wait_finished(60)
    judgement = judge([event for event in fleet.events() if event.key != "plain"])
    assert judgement.ok and judgement.duplicates == (), judgement.describe()
    assert (judgement.runs, len(fleet.starts("plain"))) == (EACH * KEYS, EACH)
    wait_until(lambda: sum(fleet.depth(f"{key}-{one}").in_flight or 0 for one in range(KEYS)) == 0)
    assert (most_at_once(fleet) > 1) is (pool != "solo"), "different keys run side by side"
    assert fleet.workers["w1"].stop() == 0
    assert fleet.dead() == []


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_of_one_greenlet_does_not_wait_for_itself(kinds: Callable[..., KindsFleet], key: str, pool: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=1)
    send_all(fleet, key, 5)
    fleet.wait_finished(30)
    judgement = fleet.judge()
    assert judgement.ok and judgement.duplicates == (), judgement.describe()


def most_at_once(fleet: KindsFleet) -> int:
    running = most = 0
    for event in sorted((e for e in fleet.events() if e.run and e.key != "plain"), key=lambda e: e.at):
        running += 1 if event.kind == "start" else -1
        most = max(most, running)
    return most


@pytest.mark.parametrize("pool", ["solo", "gevent", "eventlet"])
def test_a_task_that_computes_for_longer_than_the_lease_does_not_cost_it(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds(SHORT)
    fleet.worker("w1", pool=pool)
    before = fleet.call("context", key).get(timeout=30)["sticky"]
    fleet.worker("w2", pool=pool)  # would evict the other
    wait_until(lambda: fleet.ask("w2", "sticky")["keyspaces"]["default"]["slots"] == SLOTS // 2, 20)
    mine = next(
        one
        for one in (f"{key}-{n}" for n in range(100))
        if fleet.call("context", one).get(timeout=30)["sticky"]["worker"] == before["worker"]
    )
    epoch = fleet.call("context", mine).get(timeout=30)["epoch"]
    fleet.call("burn", mine, 1, 4.0).get(timeout=30)
    after = fleet.call("context", mine).get(timeout=30)
    assert (after["sticky"]["worker"], after["epoch"]) == (before["worker"], epoch)
    assert fleet.runs(mine).count(1) == 1
    for worker in fleet.workers.values():
        assert not re.search(r"the lease has ended|evicted", worker.log)


def test_children_that_are_replaced_after_some_tasks_lose_and_disturb_nothing(
    kinds: Callable[..., KindsFleet], key: str
) -> None:
    fleet = kinds()
    worker = fleet.worker("w1", args=("--max-tasks-per-child", "5"))
    first = pool_of(worker)
    send_all(fleet, key, 3)
    fleet.wait_finished(60)
    judgement = fleet.judge()
    assert judgement.ok and judgement.duplicates == (), judgement.describe()
    pids = {event.pid for event in fleet.events() if event.run}
    assert len(pids) >= 5 and first & pids


def test_a_pool_that_grows_and_shrinks_keeps_the_order(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    worker = fleet.worker("w1")
    send_all(fleet, key, 10, 0.01)
    assert "ok" in fleet.ask("w1", "pool_grow", n=2)
    wait_until(lambda: len(pool_of(worker)) == 4, 20, "four children")
    sent = itertools.count(10)

    def all_have_run() -> bool:
        send_all(fleet, key, 1, 0.01, first=next(sent))
        return len({event.pid for event in fleet.events() if event.run}) == 4

    wait_until(all_have_run, 30, "the new ones run tasks too")
    fleet.wait_finished(60)
    assert "ok" in fleet.ask("w1", "pool_shrink", n=3)
    send_all(fleet, key, 10, 0.01, first=next(sent))
    fleet.wait_finished(60)
    wait_until(lambda: len(pool_of(worker)) == 1, 20, "one child")
    judgement = fleet.judge()
    assert judgement.ok and judgement.duplicates == (), judgement.describe()


def test_a_pool_that_scales_itself_uses_what_it_gained(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    worker = fleet.worker("w1", args=("--autoscale", "4,1"), env={"AUTOSCALE_KEEPALIVE": "1"})
    assert len(pool_of(worker)) <= 2
    send_all(fleet, key, 8, 0.05)
    wait_until(lambda: len(pool_of(worker)) == 4, 20, "it grows to its most")
    fleet.wait_finished(60)
    judgement = fleet.judge()
    assert judgement.ok and judgement.duplicates == (), judgement.describe()
    assert len({event.pid for event in fleet.events() if event.run}) >= 3


def test_a_pool_restart_loses_nothing(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds({"worker_pool_restarts": True})
    worker = fleet.worker("w1")
    before = pool_of(worker)
    for one in range(KEYS):
        fleet.send(f"{key}-{one}", 0, 0.2)
    fleet.wait_started(f"{key}-0", 0)
    fleet.app.control.pool_restart()
    wait_until(lambda: not before & pool_of(worker) and len(pool_of(worker)) == 2, 20, "new children")
    for n in range(1, 6):
        for one in range(KEYS):
            fleet.send(f"{key}-{one}", n, 0.01)
    fleet.wait_finished(60)
    judgement = fleet.judge()
    assert judgement.ok and judgement.duplicates == (), judgement.describe()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_a_long_task_holds_one_place_of_the_pool_and_no_more(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=2)
    fleet.send(f"{key}-long", 1, 600)
    fleet.wait_started(f"{key}-long", 1)
    for result in [fleet.send(f"{key}-{n}", n) for n in range(10)]:
        result.get(timeout=30)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_of_one_greenlet_runs_one_task_after_the_other(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=1)
    for result in [fleet.send(f"{key}-{n}", n) for n in range(10)]:
        result.get(timeout=30)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_a_pool_full_of_tasks_without_a_key_does_not_keep_slots_from_moving(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=2)
    for n in range(2):
        fleet.send_plain(n, 600)
    for n in range(2):
        fleet.wait_started("plain", n)
    results = [fleet.send(f"{key}-{n}", n) for n in range(2 * SLOTS)]
    wait_until(lambda: fleet.ask("w1", "sticky")["tasks"]["runnable"] > 0, 20, "they wait for a place")
    fleet.worker("w2", pool=pool, args=("-Q", "none"))
    wait_until(lambda: any(result.ready() for result in results), 30, "slots have moved, and tasks run there")
    moving = SLOTS // 2 - (pool == "threads")  # there one task is reserved, and holds its slot
    wait_until(lambda: fleet.ask("w2", "sticky")["keyspaces"]["default"]["slots"] >= moving, 30, "all that should")
