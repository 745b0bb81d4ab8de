"""Keys come and go, and nothing of them stays behind: neither at the broker nor in the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis
from harness.keyed_fleet import SLOTS, KeyedFleet, node

from celery_sticky.testing.waiting import wait_until

FEW, MANY = 500, 20_000
SIZE_OF: Mapping[str, str] = {"hash": "HLEN", "list": "LLEN", "set": "SCARD", "zset": "ZCARD", "string": "EXISTS"}
COUNTS = ("running", "runnable", "waiting", "limited", "unconfirmed", "keys", "discarded", "abandoned")
IDLE = dict.fromkeys(COUNTS, 0)


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def run_keys(fleet: KeyedFleet, first: int, count: int) -> None:
    """Run one task for each of so many new keys. What is sent is not recorded: nothing here needs it."""
    task, before = fleet.app.tasks["record"], fleet.ended()
    with fleet.app.producer_or_acquire() as producer:
        for n in range(first, first + count):
            task.apply_async((f"key{n}", 0), producer=producer)
    fleet.wait_ended(before + count, timeout=100)
    wait_until(lambda: at_rest(fleet) == IDLE, 30, "all is confirmed")


def at_rest(fleet: KeyedFleet) -> dict[str, int]:
    """Return what the worker holds, as `inspect stats` tells it."""
    answers = fleet.app.control.inspect([node("a")], timeout=5).stats() or {}
    (answer,) = answers.values()
    held: dict[str, int] = answer["sticky"]["tasks"]
    return held


def sizes(client: redis.Redis) -> dict[str, int]:
    """Return every Redis key and how many elements it has. Left out: what `inspect` itself leaves there."""
    ask: Any = client.execute_command
    names = sorted(name for name in client.scan_iter(count=1000) if "pidbox" not in name)
    return {name: ask(SIZE_OF[ask("TYPE", name)], name) for name in names}


def test_twenty_thousand_keys_leave_nothing_behind(crew: Callable[..., KeyedFleet], client: redis.Redis) -> None:
    fleet = crew()
    fleet.worker("a", pool="threads", concurrency=4)
    fleet.wait_members("a")
    run_keys(fleet, 0, FEW)
    few = sizes(client)
    fences = [name for name in few if name.endswith(":fence")]
    assert len(fences) == SLOTS, "every slot was used, else the rest proves nothing"
    run_keys(fleet, FEW, MANY)
    assert sizes(client) == few
    assert at_rest(fleet) == IDLE
