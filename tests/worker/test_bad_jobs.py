"""Bad jobs among good ones: each hurts its neighbours once at most, and then only itself."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest
from harness.jobs_fleet import JobsFleet, hosts_of

from celery_sticky.errors import JobFailed
from celery_sticky.testing.waiting import wait_until

GOOD = [f"g-{n}" for n in range(8)]


def attempts(made: JobsFleet) -> dict[str, int]:
    """Return how often each good job was started."""
    return {key: info.attempt for key, info in made.infos().items() if key in GOOD}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_after_their_first_offence_bad_jobs_hurt_only_themselves(
    jobs_fleet: Callable[..., JobsFleet], pool: str
) -> None:
    made = jobs_fleet(sticky_job_start_timeout=1.0, sticky_job_stop_timeout=0.5, sticky_job_watchdog=1.0)
    worker = made.worker("a", pool=pool)
    for key in GOOD:
        made.jobs.dispatch("sync", key, timeout=20)
    made.jobs.admit("sync", "exits", {"die": True})
    made.jobs.admit("poll", "hangs", {"slow": 600})
    made.jobs.admit("sync", "raises", {"raise": "no"})
    bad = {"exits", "hangs", "raises"}

    def all_have_failed() -> bool:
        infos = made.infos()
        return all(infos[key].failures >= 2 for key in bad)

    wait_until(all_have_failed, 60, "each has had its first offence", 0.1)
    wait_until(lambda: {made.infos()[key].state for key in GOOD} == {"running"}, 30, "the good ones run again")
    before, failures = attempts(made), {key: made.infos()[key].failures for key in bad}
    assert max(before.values()) <= 3, "one start, and one more for each that ended the process"
    wait_until(lambda: all(made.infos()[key].failures >= failures[key] + 2 for key in bad), 60, "they go on", 0.1)
    assert attempts(made) == before, "the good ones did not notice"
    infos = made.infos()
    assert {key: infos[key].quarantined for key in bad} == {"exits": True, "hangs": True, "raises": False}
    assert "its process ended" in infos["exits"].error
    assert "its start took longer than 1 s" in infos["hangs"].error
    assert "ValueError: no" in infos["raises"].error
    for key in bad:
        made.jobs.stop("poll" if key == "hangs" else "sync", key)
    wait_until(lambda: made.infos().keys() == set(GOOD), 30, "they can be stopped", 0.1)
    assert attempts(made) == before
    assert worker.stop() == 0


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_isolated_jobs_never_hurt_others_not_even_once(jobs_fleet: Callable[..., JobsFleet], pool: str) -> None:
    made = jobs_fleet(sticky_job_start_timeout=2.0, sticky_job_stop_timeout=0.5, sticky_job_watchdog=3.0)
    worker = made.worker("a", pool=pool)
    for key in GOOD:
        made.jobs.dispatch("sync", key, timeout=20)
    made.jobs.admit("isolated", "exits", {"die": True})
    made.jobs.admit("isolated", "blocks", {"block": 600})
    made.jobs.admit("isolated-poll", "hangs", {"slow": 600})
    made.jobs.admit("isolated", "fine")
    bad = {"exits", "blocks", "hangs"}
    wait_until(lambda: all(made.infos()[key].failures >= 2 for key in bad), 60, "each fails again and again", 0.1)
    infos = made.infos()
    assert {infos[key].attempt for key in (*GOOD, "fine")} == {1}, "nobody else has noticed"
    assert not any(infos[key].quarantined for key in bad)
    (own,) = hosts_of(made, "a", "the process of job 'isolated' of key 'fine'")
    assert own not in hosts_of(made, "a")
    for key in bad:
        made.jobs.stop("isolated-poll" if key == "hangs" else "isolated", key)
    wait_until(lambda: made.infos().keys() == {*GOOD, "fine"}, 30, "they can be stopped", 0.1)
    assert {info.attempt for info in made.infos().values()} == {1}
    assert worker.stop() == 0


def test_a_job_is_given_up_after_max_starts_and_started_again_by_a_restart(
    jobs_fleet: Callable[..., JobsFleet],
) -> None:
    made = jobs_fleet()
    made.worker("a")
    made.jobs.admit("limited", "t-1", {"raise": "no"})
    wait_until(lambda: made.infos()["t-1"].state == "failed", 30, "it is given up", 0.1)
    info = made.infos()["t-1"]
    assert (info.failures, info.attempt) == (3, 3) and "ValueError: no" in info.error
    made.jobs.update("limited", "t-1", {})
    made.wait_running({"t-1"})
    assert made.infos()["t-1"].failures == 0


def test_jobs_are_spread_over_several_hosts_and_those_in_the_others_do_not_notice_an_end(
    jobs_fleet: Callable[..., JobsFleet],
) -> None:
    made = jobs_fleet(sticky_job_hosts=3)
    worker = made.worker("a")
    for key in GOOD:
        made.jobs.dispatch("sync", key, timeout=20)
    hosts = [hosts_of(made, "a", f"job host {n} of 3") for n in (1, 2, 3)]
    assert all(len(found) == 1 for found in hosts)
    os.kill(hosts[0][0], signal.SIGKILL)
    worker.wait_for_log(r"job host 1 of 3 has died \(exit status -9\)", 20)
    made.wait_running(GOOD, "a")
    wait_until(lambda: max(attempts(made).values()) <= 2, 20, "each runs again")
    assert 1 in attempts(made).values(), "others go on"
    assert worker.stop() == 0


def test_a_schedule_that_cannot_be_stopped_hurts_no_job(jobs_fleet: Callable[..., JobsFleet]) -> None:
    """Guards: a slow function of a schedule whose slot moved ended the job host."""
    made = jobs_fleet(sticky_job_stop_timeout=0.5)
    worker = made.worker("a")
    for key in GOOD:
        made.jobs.dispatch("sync", key, timeout=20)
    made.config.history.with_name("hang").touch()
    wait_until(lambda: any(event.key == "hangs" for event in made.events()), 20, "it is called, and takes its time")
    made.worker("b")
    made.wait_members("a", "b")
    assert worker.stop(timeout=60) == 0
    log = worker.log
    assert re.search(r"took longer than 0\.5 s; killing the job host of schedules and tickers", log)
    assert "killing the job host, process" not in log
    made.wait_running(GOOD, "b")
    assert max(attempts(made).values()) <= 3, "each has moved at most twice"


def test_a_first_start_that_a_dispatch_waits_for_is_told(jobs_fleet: Callable[..., JobsFleet]) -> None:
    made = jobs_fleet()
    made.worker("a")
    with pytest.raises(JobFailed, match="its process ended"):
        made.jobs.dispatch("sync", "exits", {"die": True}, timeout=60)
    assert made.infos() == {}
