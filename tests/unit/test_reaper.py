"""Killing a process with what it has started: never another process that has got its id since."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from celery_sticky.platform.reaper import Leader, Leaders, kill_group
from celery_sticky.testing.processes import running
from celery_sticky.testing.waiting import wait_until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
SLEEP = "import time; time.sleep(60)"
FAMILY = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def start(started: list[subprocess.Popen[str]], program: str = SLEEP) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    started.append(process)
    return process


def start_as(pid: int, started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Start a process that gets the id of one that is gone."""
    for _ in range(50):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            pytest.skip("this machine does not let us choose process ids")
        process = start(started)
        if process.pid == pid:
            return process
    pytest.skip("the process id was never free")


def test_a_process_that_got_the_id_of_a_reaped_one_is_spared(started: list[subprocess.Popen[str]]) -> None:
    first = start(started)
    leader = Leader(first.pid)
    assert not leader.reaped
    first.kill()
    first.wait(10)
    assert leader.reaped
    kill_group(leader)  # nothing
    other = start_as(first.pid, started)
    kill_group(leader)
    assert other.poll() is None and running(other.pid)
    kill_group(Leader(other.pid))
    assert other.wait(10) == -signal.SIGKILL


def test_what_a_reaped_process_has_started_dies_all_the_same(started: list[subprocess.Popen[str]]) -> None:
    first = start(started, FAMILY)
    assert first.stdout is not None
    leader, child = Leader(first.pid), int(first.stdout.readline())
    first.wait(10)
    assert leader.reaped and running(child)
    kill_group(leader)
    wait_until(lambda: not running(child), timeout=10)


def test_one_that_leads_no_group_yet_is_killed_alone() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    kill_group(Leader(process.pid))
    assert process.wait(10) == -signal.SIGKILL


def test_leaders_are_remembered_while_they_are_there(started: list[subprocess.Popen[str]]) -> None:
    leaders, first, second = Leaders(), start(started), start(started)
    known = leaders.of(first.pid)
    assert leaders.of(first.pid) is known and leaders.of(second.pid) is not known
    first.kill()
    first.wait(10)
    assert leaders.of(first.pid) is not known
