"""What two workers log when slots change their owner, because one of them is killed or frozen."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.app import AppConfig
from harness.keyed_fleet import CONF, SLOTS, TTL, KeyedFleet, node

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.waiting import wait_until

HALF = SLOTS // 2


@pytest.fixture
def fleet(guard: Guard, redis_url: str, tmp_path: Path) -> Iterator[KeyedFleet]:
    conf = {**CONF, "sticky_runtime_dir": str(tmp_path / "run")}
    made = KeyedFleet(guard, tmp_path, AppConfig(redis_url, tmp_path / "history.jsonl", conf=conf))
    yield made
    made.teardown()


def changes(log: str, what: str) -> list[tuple[str, str]]:
    """Return level and text of the lines about owners, in order."""
    return re.findall(rf"(INFO|WARNING)\S*\] keyspace default: ((?:{what}).*)", log)


def slots(lines: list[tuple[str, str]]) -> int:
    return sum(int(count) for _, text in lines for count in re.findall(r"^\D*?(\d+) slots?\b", text))


def test_the_log_says_who_took_what_from_whom_when_a_worker_is_killed(fleet: KeyedFleet) -> None:
    (a,) = fleet.workers_up("a")
    wait_until(lambda: changes(a.log, "gained"), message="a has slots")
    (b,) = fleet.workers_up("b")
    wait_until(lambda: slots(changes(b.log, "gained")) == HALF, message="b has its half")
    assert all(f"from {node('a')}: " in text for _, text in changes(b.log, "gained"))
    given = changes(a.log, "gave away")
    assert slots(given) == HALF and all(f"to {node('b')}: " in text for _, text in given)

    b.kill()
    wait_until(lambda: changes(a.log, "took over"), message="a takes over")
    assert changes(a.log, "took over") == [
        ("INFO", f"took over {HALF} slots from {node('b')}, which was declared dead")
    ], "one line"
    [(level, text)] = changes(a.log, "evicted")
    assert level == "WARNING" and text.startswith(f"evicted {node('b')}, which has sent no heartbeat for ")
    assert slots(changes(a.log, "gained")) == SLOTS, "and nothing was gained twice"


def test_a_worker_that_was_frozen_for_too_long_says_that_it_was_evicted(fleet: KeyedFleet) -> None:
    a, b = fleet.workers_up("a", "b")
    b.kill(signal.SIGSTOP)
    wait_until(lambda: changes(a.log, "took over"), message="a takes over")
    b.kill(signal.SIGCONT)
    wait_until(lambda: changes(b.log, "lost"), message="b learns of it")
    [(level, text)] = changes(b.log, "this worker was evicted")
    assert level == "WARNING" and float(re.findall(r"sent ([\d.]+) s ago", text)[0]) > TTL
    assert f"It had {HALF} slots open" in text
    assert changes(b.log, "lost") == [("INFO", f"lost {HALF} slots")], "one line"
