"""A real job host whose loop a job blocks: what it tells its worker and the log meanwhile."""

from __future__ import annotations

from pathlib import Path

from harness.host import TestHost

from celery_sticky.jobs.wire import Blocked, Ping, Pong
from celery_sticky.testing.waiting import wait_until


def test_its_loop_answers_pings(host: TestHost) -> None:
    host.wait_ready()
    host.process.send([Ping()])
    wait_until(lambda: host.count(Pong) == 1, 30, f"an answer: {host}")


def test_while_a_job_blocks_the_loop_the_worker_and_the_log_are_told_which_one(host: TestHost, tmp_path: Path) -> None:
    host.started("listen", "other")
    ref = host.started("block", "t-7")
    host.process.send([Ping()])
    wait_until(lambda: host.count(Blocked) > 1, 60, f"it is told, again and again: {host}")
    assert host.count(Pong) == 0
    blocked = host.by_ref[ref][-1]
    assert isinstance(blocked, Blocked) and (blocked.name, blocked.key) == ("block", "t-7") and blocked.seconds >= 5
    log = wait_until(lambda: (tmp_path / "w1.log").read_text(), 30, "it is logged")
    assert log.count("WARNING") == 1 and "job 'block' of key 't-7' has blocked the event loop for 5 s" in log
    assert "in block\n    time.sleep(3600)" in log, "where it is"
