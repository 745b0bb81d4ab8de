"""A task's own rate limit holds the keys of that task, and no others: in every pool, also when it changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.kinds import KindsFleet

from celery_sticky.testing.waiting import wait_until

POOLS = ("prefork", "threads", "solo", "gevent")
MANY = 12


def limit(fleet: KindsFleet, rate: str) -> None:
    assert "ok" in fleet.ask("w1", "rate_limit", task_name="limited", rate_limit=rate)


def ran(fleet: KindsFleet, key: str, keys: int) -> int:
    return sum(len(fleet.runs(f"{key}-{n}")) for n in range(keys))


@pytest.mark.parametrize("pool", POOLS)
def test_a_rate_limit_does_not_hold_other_keys(kinds: Callable[..., KindsFleet], key: str, pool: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=2)
    limit(fleet, "1/h")
    held = [fleet.call("limited", f"{key}-{n % 6}", n) for n in range(MANY)]
    wait_until(lambda: ran(fleet, key, 6) == 1, 20, "there is one token")
    for result in [fleet.send(f"{key}-other-{n}", n) for n in range(2 * MANY)]:
        result.get(timeout=30)
    assert ran(fleet, key, 6) == 1, "those with a limit have waited meanwhile"
    limit(fleet, "4/s")
    for result in held:
        result.get(timeout=30)
    for one in range(6):
        assert fleet.runs(f"{key}-{one}") == [one, one + 6]
    starts = sorted(event.at for one in range(6) for event in fleet.starts(f"{key}-{one}"))[1:]
    assert (starts[-1] - starts[0]) / 1e9 >= (MANY - 2) / 4 * 0.7, "four a second, over all keys"


@pytest.mark.parametrize("pool", POOLS)
def test_a_rate_limit_may_be_changed_and_taken_away_while_tasks_wait_for_it(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    fleet.worker("w1", pool=pool, concurrency=2)
    limit(fleet, "1/h")
    results = [fleet.call("limited", f"{key}-{n}", n) for n in range(4)]
    wait_until(lambda: fleet.ask("w1", "sticky")["tasks"]["limited"] == 3, 20, "one token, one start")
    wait_until(lambda: ran(fleet, key, 4) == 1, 20, "the one that had the token")
    limit(fleet, "1/h")
    wait_until(lambda: ran(fleet, key, 4) == 2, 20, "Celery starts with a full bucket")
    limit(fleet, "0")
    for result in results:
        result.get(timeout=30)
    assert fleet.ask("w1", "sticky")["tasks"]["limited"] == 0


def test_rate_limits_may_be_off_altogether(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds({"worker_disable_rate_limits": True})
    fleet.worker("w1", pool="threads")
    limit(fleet, "1/h")
    for result in [fleet.call("limited", f"{key}-{n}", n) for n in range(4)]:
        result.get(timeout=30)


def test_what_waits_for_a_rate_limit_moves_with_its_slot(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    first = fleet.worker("w1", pool="threads")
    limit(fleet, "1/h")
    results = [fleet.call("limited", f"{key}-{n}", n) for n in range(4)]
    wait_until(lambda: fleet.ask("w1", "sticky")["tasks"]["limited"] == 3, 20, "one token, one start")
    fleet.worker("w2", pool="threads")
    assert first.stop() == 0
    for result in results:
        result.get(timeout=30)
