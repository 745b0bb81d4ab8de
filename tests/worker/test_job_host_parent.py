"""A job host and the process it belongs to: frozen, killed, with greenlets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.host import settle, wait_log

from celery_sticky.platform.spawn import UNKNOWN_STATUS
from celery_sticky.testing import processes
from celery_sticky.testing.guard import Guard


class Parent:
    """`harness.host_parent`, in a session of its own."""

    def __init__(self, log: Path, how: str, trust: float, *jobs: str) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "harness.host_parent", str(log), str(trust), how, *jobs]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self._process.pid
        self.host = int(self._told("host"))

    def wait_ready(self) -> None:
        """Wait until all jobs run."""
        self._told("ready")

    def end(self) -> int:
        """Let it stop the jobs; return the exit status of the host."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = int(self._told("exit"))
        assert self._process.wait(30) == 0
        return status

    def kill(self, *, reaper: bool = False) -> None:
        """SIGKILL it, and its reaper before it: they are its only children beside the host."""
        if reaper:
            (pid,) = set(processes.children(self.pid)) - {self.host}
            os.kill(pid, signal.SIGKILL)
            assert processes.wait_gone([pid], 10)
        self._process.kill()
        self._process.wait(30)

    def close(self) -> None:
        """Leave nothing open."""
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.wait(30)

    def _told(self, word: str) -> str:
        assert self._process.stdout is not None
        said, _, rest = self._process.stdout.readline().strip().partition(" ")
        assert said == word, f"it says {said!r} and not {word!r}"
        return rest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "jobs.log"


@pytest.fixture
def make_parent(log: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Parent]]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    parents: list[tuple[Parent, int]] = []

    def make(*jobs: str, how: str = "plain", trust: float = 600.0) -> Parent:
        parent = Parent(log, how, trust, *jobs)
        parents.append((parent, guard.watch(parent.pid)))
        return parent

    yield make
    for parent, started in parents:
        processes.kill_session(parent.pid, started)
        parent.close()
        guard.forget(parent.pid)


def children(log: Path) -> list[int]:
    """Wait for what the job of the first key has started."""
    return [int(wait_log(log, rf"{what}:(\d+) k0")[1]) for what in ("program", "forked")]


def wait_gone(*pids: int) -> None:
    gone = processes.wait_gone(pids, 10)
    assert len(gone) == len(pids), f"{set(pids) - set(gone)} of {pids} run still"


def test_a_frozen_parent_does_not_keep_the_host_from_ending_in_time(make_parent: Callable[..., Parent]) -> None:
    parent = make_parent("block", trust=4.0)
    parent.wait_ready()
    os.kill(parent.pid, signal.SIGSTOP)
    assert processes.running(parent.host)
    wait_gone(parent.host)


@pytest.mark.parametrize("reaper", [False, True])
def test_a_killed_parent_takes_the_host_with_it_and_what_jobs_have_started(
    make_parent: Callable[..., Parent], log: Path, reaper: bool
) -> None:
    parent = make_parent("spawn")
    started = children(log)
    parent.kill(reaper=reaper)
    wait_gone(parent.host, *started)


def test_a_killed_parent_takes_a_host_with_it_whose_loop_is_blocked(
    make_parent: Callable[..., Parent], log: Path
) -> None:
    parent = make_parent("block")
    wait_log(log, "blocks k0")
    parent.kill(reaper=True)
    wait_gone(parent.host)


def test_what_jobs_have_started_dies_also_when_parent_and_host_are_killed_at_once(
    make_parent: Callable[..., Parent], log: Path
) -> None:
    parent = make_parent("spawn")
    started = children(log)
    os.kill(parent.pid, signal.SIGSTOP)  # so that it does not kill them
    os.kill(parent.host, signal.SIGKILL)
    parent.kill()
    wait_gone(parent.host, *started)


def test_an_idle_host_goes_with_its_parent_also_while_another_process_holds_the_socket(
    make_parent: Callable[..., Parent],
) -> None:
    parent = make_parent(how="fork")
    parent.wait_ready()
    settle()
    assert processes.running(parent.host)
    parent.kill()
    wait_gone(parent.host)
    assert len(processes.in_session(parent.pid)) >= 1, "the other process lives"


@pytest.mark.parametrize("how", ["gevent", "eventlet"])
def test_it_works_beside_greenlets(make_parent: Callable[..., Parent], how: str) -> None:
    parent = make_parent("listen", "sync", how=how)
    parent.wait_ready()
    assert parent.end() in (0, UNKNOWN_STATUS)


@pytest.mark.parametrize("how", ["gevent", "eventlet"])
def test_beside_greenlets_too_a_killed_parent_takes_all_with_it(
    make_parent: Callable[..., Parent], log: Path, how: str
) -> None:
    parent = make_parent("spawn", how=how)
    started = children(log)
    parent.kill()
    wait_gone(parent.host, *started)
