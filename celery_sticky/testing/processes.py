"""Processes of one session (setsid), read from /proc; this module touches only processes that it is given."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of a process by /proc."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    """Clock ticks since boot: pid and start time together identify a process for good."""


def stat(pid: int) -> Stat | None:
    """Return the state of `pid`, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def born() -> int:
    """Return when this process started, in CLOCK_MONOTONIC nanoseconds."""
    me = stat(os.getpid())
    assert me is not None, "/proc has this process"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - me.started / os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns() - int(age * 1e9)


def cpu_wait() -> int:
    """Return for how many nanoseconds the main thread of this process has been ready to run but had no CPU.

    0 if the kernel does not count that.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except FileNotFoundError:
        return 0


def running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def _all() -> Iterator[Stat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := stat(int(name))) is not None:
            yield found


def children(pid: int) -> list[int]:
    """Return the running direct children of `pid`, oldest first."""
    found = [s for s in _all() if s.parent == pid and s.state not in "ZX"]
    return [s.pid for s in sorted(found, key=lambda s: (s.started, s.pid))]


def in_session(leader: int) -> list[int]:
    """Return the running processes of the session that `leader` started, even if the leader is gone."""
    found = [s for s in _all() if s.session == leader and s.state not in "ZX"]
    return [s.pid for s in sorted(found, key=lambda s: (s.started, s.pid))]


def end_leader(leader: int, started: int, number: int) -> None:
    """Send a signal to a process and wait for its end, unless its id belongs to a later process now.

    It and its children may have been stopped (SIGSTOP).
    """
    now = stat(leader)
    if number == signal.SIGKILL or now is None or now.started != started:
        return
    pids = [leader, *children(leader)]
    os.kill(leader, number)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_gone(pids, timeout=10.0)


def kill_session(leader: int, started: int) -> None:
    """SIGKILL every process of a session, unless the leader's id belongs to a later process now."""
    now = stat(leader)
    if now is not None and now.started != started:
        return
    for _ in range(10):  # a process may fork while it is being killed
        pids = in_session(leader)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_gone(pids, timeout=1.0)


def wait_gone(pids: Iterable[int], timeout: float) -> dict[int, int]:
    """Wait until none of `pids` runs; return when each was first seen gone, in CLOCK_MONOTONIC nanoseconds.

    Processes that still run after `timeout` seconds are not in the result.
    """
    waiting, gone = set(pids), dict[int, int]()
    deadline = time.monotonic() + timeout
    while True:
        for pid in [pid for pid in waiting if not running(pid)]:
            gone[pid] = time.monotonic_ns()
            waiting.remove(pid)
        if not waiting or time.monotonic() >= deadline:
            return gone
        time.sleep(0.002)
