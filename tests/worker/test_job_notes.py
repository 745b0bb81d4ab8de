"""Notifications of jobs in real workers: those that cannot be handled, and those that are handled during a move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.app import AppConfig
from harness.jobs_fleet import JOB_CONF, JobsFleet
from harness.keyed_fleet import CONF

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Kind
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

POOLS = ["threads", "prefork"]


@pytest.fixture
def fleet(guard: Guard, valkey: Callable[..., ValkeyServer], tmp_path: Path) -> Iterator[Callable[..., JobsFleet]]:
    """Makes a fleet on a server of its own."""
    fleets: list[JobsFleet] = []

    def make(**settings: Any) -> JobsFleet:
        conf = {**CONF, **JOB_CONF, "sticky_runtime_dir": str(tmp_path / "run"), **settings}
        fleets.append(JobsFleet(guard, tmp_path, AppConfig(valkey().url, tmp_path / "history.jsonl", conf=conf)))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.mark.parametrize("pool", POOLS)
def test_a_notification_that_raises_or_ends_the_host_is_set_aside_and_harms_no_other(
    fleet: Callable[..., JobsFleet], pool: str
) -> None:
    made = fleet(sticky_job_max_deliveries=2)
    worker = made.worker("a", pool=pool)
    made.jobs.dispatch("poll", "raises", timeout=20)
    made.jobs.dispatch("sync", "dies", timeout=20)
    made.jobs.dispatch("sync", "slow", {"slow": 1.0}, timeout=20)
    for payload in ("fail", 7):
        made.jobs.notify("poll", "raises", payload)
    wait_until(lambda: made.notes("raises") == [7], 20, "the next one is delivered")
    (dead,) = made.jobs.dead.list()
    assert (dead.name, dead.key, dead.deliveries, dead.error) == ("poll", "raises", 2, "RuntimeError: as told")
    worker.wait_for_log(r"a notification of job 'poll' of key 'raises' is dead after 2 deliveries", 20)
    assert [event.key for event in made.job_events(Kind.START)].count("raises") == 1, "it was not restarted for that"

    for n in range(5):
        made.jobs.notify("sync", "slow", n)  # while the host dies again and again
    for payload in ("die", 8):
        made.jobs.notify("sync", "dies", payload)
    wait_until(lambda: made.notes("dies") == [8], 60, "the poison is set aside")
    assert [(one.key, one.deliveries) for one in made.jobs.dead.list()] == [("raises", 2), ("dies", 2)]
    wait_until(lambda: list(dict.fromkeys(made.notes("slow"))) == list(range(5)), 30, "none is lost, all in order")
    assert made.jobs.dead.list("sync", "slow") == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_notification_that_is_handled_while_its_job_moves_comes_again_and_does_not_count(
    fleet: Callable[..., JobsFleet], pool: str
) -> None:
    made = fleet(sticky_job_max_deliveries=1)
    made.worker("a", pool=pool)
    made.jobs.dispatch("sync", "t-7", {"slow": 600}, timeout=20)
    for n in (1, 2):
        made.jobs.notify("sync", "t-7", n)
    wait_until(lambda: made.notes("t-7") == [1], 20, "it is handled")
    made.worker("b", pool=pool)
    assert made.workers["a"].stop(timeout=60) == 0
    made.wait_running({"t-7"}, "b")
    wait_until(lambda: made.notes("t-7") == [1, 1], 20, "it comes again")
    assert made.jobs.dead.list() == []
