"""Celery's own parts fail around a task: it runs once, nothing is left reserved, and what is said of it is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.kinds import KindsFleet

from celery_sticky.testing.waiting import wait_until

POOLS = ["prefork", "threads", "solo", "gevent"]


def nothing_reserved(fleet: KindsFleet) -> bool:
    counts = fleet.ask("w1", "sticky")["tasks"]
    return all(counts[name] == 0 for name in ("running", "runnable", "waiting", "unconfirmed", "keys"))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("breaks", ["events", "pool"])
def test_what_raises_around_a_task_is_not_the_tasks_fault(
    kinds: Callable[..., KindsFleet], key: str, pool: str, breaks: str
) -> None:
    fleet = kinds()
    env = {"STICKY_BREAKS": breaks}
    worker = fleet.worker("w1", app="harness.broken_app", pool=pool, concurrency=1, args=("-E",), env=env)
    keys = [f"{key}-{one}" for one in range(6)]
    for n in range(3):
        for one in keys:
            fleet.call("fails" if n == 1 else "record", one, n)
    wait_until(lambda: all(len(fleet.runs(one)) >= 3 for one in keys), 60, "all run")
    wait_until(lambda: nothing_reserved(fleet), 30, "nothing is left reserved")
    assert [fleet.runs(one) for one in keys] == [[0, 1, 2]] * len(keys), "each once, in order"
    assert "could not be started" in worker.log and fleet.dead() == []
    assert worker.stop() == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_without_memory_counts_as_a_death_and_is_buried_for_that(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds({"sticky_max_attempts": 3})
    worker = fleet.worker("w1", pool=pool, concurrency=1)
    pid = worker.pid
    result, after = fleet.call("exhausts", key, 1), fleet.send(key, 2)
    reason = fleet.wait_buried(result.id)["reason"]
    assert "started 3 times" in reason and "MemoryError" in reason and "process died" not in reason
    after.get(timeout=30)
    assert fleet.runs(key) == [1, 1, 1, 2]
    assert worker.pid == pid and worker.alive
