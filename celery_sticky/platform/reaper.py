"""The reaper: a program that briefly outlives a worker's main process, and kills what its children started.

Celery makes the kernel kill a pool's children at once when their parent dies, so no child can kill the processes that
its own task started. A job host may be killed in the same moment. The reaper is told of each child, which leads a
process group, and waits for the end of its input: then every process that could write to it is dead. It imports very
little, and nothing of ours.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

FAREWELL = "farewell"
"""Sent by a main process that ends normally: nothing is killed."""


def hire() -> tuple[int, int]:
    """Start the program; return its process id and the descriptor to write to it.

    Call this before the pool forks: every process that inherits the descriptor can write to the program, and the
    program acts only when all of them are dead.
    """
    from celery_sticky.platform.spawn import spawn  # not at the top: the program itself imports nothing of ours

    theirs, ours = os.pipe()
    try:
        return spawn([sys.executable, "-I", "-S", os.path.abspath(__file__)], {0: theirs}, session=True), ours
    finally:
        os.close(theirs)


def attend(lines: Iterable[str]) -> None:
    """Read the ids of group leaders, one per line; kill their groups at the end of the input."""
    started: dict[int, str] = {}
    for line in lines:
        word = line.strip()
        if word == FAREWELL:
            return
        started[int(word)] = _start_of(int(word))
    for leader, start in started.items():
        # The id is not given to another process while any process of its group lives.
        if _start_of(leader) in (start, ""):
            kill_group(leader)


class Leader(int):
    """The id of a process that leads a group; it can be checked whether the id may belong to another process by now.

    Create it while the process exists, or at least is not reaped yet.
    """

    def __new__(cls, pid: int) -> Leader:
        """Open a handle on the process that has this id now."""
        leader = super().__new__(cls, pid)
        leader._handle = None
        with suppress(AttributeError, OSError):  # no pidfd on this system; the process is gone; no descriptors left
            leader._handle = os.pidfd_open(pid)
        return leader

    _handle: int | None

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    @property
    def reaped(self) -> bool:
        """True if the process is known to be gone, so that another process may have its id."""
        if self._handle is None:
            return False
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it exists, but we may not signal it
            return False
        return False


class Leaders:
    """The existing leaders, by id; used by one thread."""

    def __init__(self) -> None:
        self._found: dict[int, Leader] = {}

    def of(self, pid: int) -> Leader:
        """Return the process that has this id now."""
        leader = self._found.get(pid)
        if leader is None or leader.reaped:
            self._found = {other: found for other, found in self._found.items() if not found.reaped}
            leader = self._found[pid] = Leader(pid)
        return leader


def kill_group(leader: int) -> None:
    """Send SIGKILL to a process and everything it started, even if it is gone itself; do nothing if all is gone.

    For a reaped `Leader` it is checked whether another process has its id, and so the id of its group. While any
    process of the group is left, no other process gets that id.
    """
    reaped = isinstance(leader, Leader) and leader.reaped
    if reaped and _start_of(leader):
        return
    with suppress(ProcessLookupError, PermissionError):  # gone, or the id now belongs to another process
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            if not reaped:
                os.kill(leader, signal.SIGKILL)  # it has not become a group leader yet


def _start_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    attend(sys.stdin)
