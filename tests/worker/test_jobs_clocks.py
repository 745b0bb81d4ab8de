"""Jobs in real workers whose handlers are slow, and job hosts that do nothing any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from harness.jobs_fleet import JobsFleet, host_of

from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

POOLS = ["threads", "prefork"]
MANY = [f"m{n}" for n in range(24)]


@pytest.fixture
def fleet(jobs_fleet: Callable[..., JobsFleet]) -> Callable[..., JobsFleet]:
    return jobs_fleet


@pytest.mark.parametrize("pool", POOLS)
def test_all_start_and_all_stop_however_few_threads_there_are(fleet: Callable[..., JobsFleet], pool: str) -> None:
    """Each call takes far less than its timeout; all calls together, in two threads, take far more."""
    made = fleet(sticky_job_threads=2, sticky_job_start_timeout=3.0, sticky_job_stop_timeout=3.0)
    for key in MANY:
        made.jobs.admit("poll", key, {"slow": 0.6, "slow_stop": 0.6})
    worker = made.worker("a", pool=pool)
    made.wait_running(MANY, timeout=60)
    assert len(made.job_events(Kind.START)) == len(MANY)
    assert worker.stop(timeout=120) == 0
    assert len(made.job_events(Kind.END)) == len(MANY)
    log = worker.log
    assert "killing the job host" not in log and "not every slot was given away" not in log


def test_a_job_that_waits_for_a_thread_is_stopped_at_once(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_threads=1)
    made.worker("a")
    made.jobs.admit("poll", "t-1", {"slow": 600})
    wait_until(lambda: made.infos()["t-1"].state == "starting", 20, "it is called")
    made.jobs.admit("poll", "t-2")
    wait_until(lambda: made.infos()["t-2"].state == "starting", 20, "it waits")
    made.jobs.stop("poll", "t-2", timeout=10)
    assert made.job_events(Kind.START) == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_job_that_blocks_the_loop_is_named_and_waits_and_its_neighbours_go_on(
    fleet: Callable[..., JobsFleet], pool: str
) -> None:
    made = fleet(sticky_job_watchdog=2.0)
    worker = made.worker("a", pool=pool)
    made.jobs.dispatch("blocking", "bad", 600, timeout=20)
    made.jobs.dispatch("sync", "good", timeout=20)
    made.jobs.notify("blocking", "bad")
    worker.wait_for_log(
        r"WARNING.*job 'blocking' of key 'bad' has blocked the event loop for \d+ s; all other jobs in its process", 30
    )
    worker.wait_for_log(r"job 'blocking' of key 'bad' has blocked .*\(sticky_job_watchdog\); killing the job host", 30)
    wait_until(lambda: made.infos()["bad"].state == "failing", 30, "it shows")
    assert "it blocked the event loop of its job host for" in made.infos()["bad"].error
    wait_until(lambda: made.infos()["good"].attempt >= 2 and made.infos()["good"].state == "running", 30, "again")
    assert made.infos()["good"].error == ""
    assert made.overlaps() == []


def test_a_frozen_job_host_is_replaced(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_watchdog=2.0)
    worker = made.worker("a")
    made.jobs.dispatch("sync", "t-1", timeout=20)
    os.kill(host_of(made, "a"), signal.SIGSTOP)
    worker.wait_for_log(r"the job host has not answered for \d+ s \(sticky_job_watchdog\); killing the job host", 30)
    wait_until(lambda: made.infos()["t-1"].attempt == 2, 30, "it starts again")
    made.wait_running({"t-1"})
    assert made.infos()["t-1"].error == "" and made.overlaps() == []
