"""What the other floors stand on: nothing is left behind, and a failed wait says what it saw."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from harness.standing import MARK

from celery_sticky.testing import processes
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

TESTS = Path(__file__).parent.parent


def test_a_wait_returns_the_first_true_value() -> None:
    values = iter([0, "", None, "there"])
    assert wait_until(lambda: next(values), timeout=5, interval=0) == "there"


def test_a_wait_that_fails_tells_the_last_value_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"three workers are there \(last value: \[\]\)"):
        wait_until(list, timeout=0.01, message="three workers are there")


def test_the_guard_kills_a_session_when_its_owner_is_killed(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(held)], cwd=TESTS, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        leader, child, guard = (int(word) for word in owner.stdout.readline().split())
    assert all(processes.running(pid) for pid in (leader, child, guard))
    owner.kill()
    owner.wait(timeout=10)
    wait_until(lambda: not any(processes.running(pid) for pid in (leader, child, guard)), message="all are gone")
    assert not held.exists()


OWNER = """
import pathlib, subprocess, sys, time
from celery_sticky.testing.guard import Guard
from harness.standing import MARK
guard = Guard()
script = 'import subprocess, time; print(subprocess.Popen(["sleep", "600"]).pid, flush=True); time.sleep(600)'
leader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
child = int(leader.stdout.readline())
guard.watch(leader.pid, pathlib.Path(sys.argv[1]))
print(leader.pid, child, guard.pid, flush=True)
time.sleep(600)
"""


def test_the_guard_spares_a_session_it_was_told_to_forget() -> None:
    guard = Guard()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as sleeper:
        guard.watch(sleeper.pid)
        guard.forget(sleeper.pid)
        guard.close()
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_session_is_not_killed_when_its_leader_is_a_later_process_of_the_same_id() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as sleeper:
        found = processes.stat(sleeper.pid)
        assert found is not None
        processes.kill_session(sleeper.pid, found.started - 1)
        assert sleeper.poll() is None
        processes.kill_session(sleeper.pid, found.started)
        assert sleeper.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_private_server_keeps_its_address_and_its_data_over_a_kill(
    valkey: Callable[..., ValkeyServer], unix: bool
) -> None:
    server = valkey(appendonly=True, unix=unix)
    with server.client() as client:
        client.set("a", "1")
    url, pid = server.url, server.pid
    server.restart()
    assert server.url == url
    assert server.pid != pid
    with server.client() as client:
        assert client.get("a") == "1"


def test_a_frozen_server_does_not_answer_until_it_is_thawed(valkey: Callable[..., ValkeyServer]) -> None:
    server = valkey()
    with server.client(socket_timeout=0.2) as client:
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.thaw()
        assert wait_until(client.ping)


@pytest.mark.parametrize("turn", ["first", "second"])
def test_the_database_of_a_test_is_empty_at_its_start(redis_url: str, turn: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.keys() in ([], [MARK])
        client.set("left by the test before", turn)


def test_lines_of_many_processes_do_not_mix_and_survive_a_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)], cwd=TESTS.parent) for n in range(4)]
    recorder = Recorder(path)
    wait_until(lambda: len({event.key for event in recorder.events()}) == 4, message="all four wrote")
    wait_until(lambda: len(recorder.events()) > 400, message="they write")
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(timeout=10)
    before = recorder.events()
    assert {event.pid for event in before} == {writer.pid for writer in writers}


WRITER = """
import sys
from celery_sticky.testing.recorder import Recorder
recorder = Recorder(sys.argv[1])
for n in range(10**9):
    recorder.published(sys.argv[2], n, "x" * 200)
"""
