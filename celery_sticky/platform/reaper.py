"""Outlives a worker's main process by a moment, and kills what its children have started.

Celery has the kernel kill a pool's children together with their parent: at once, and so before any of them can kill the
processes that its own task has started. A job host may be killed in the same moment. This program is told of each
child, which leads a process group, and waits for the end of its input: all that could write to it are dead then. It
imports next to nothing, nothing of ours.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

FAREWELL = "farewell"
"""Said by a main process that ends in order: nothing is to be killed."""


def hire() -> tuple[int, int]:
    """Start the program; return its process id and the descriptor that it is told things by.

    Make it before the pool forks: whatever inherits the descriptor can tell it things, and has to be dead in the end.
    """
    from celery_sticky.platform.spawn import spawn  # not above: the program itself imports nothing of ours

    theirs, ours = os.pipe()
    try:
        return spawn([sys.executable, "-I", "-S", os.path.abspath(__file__)], {0: theirs}, session=True), ours
    finally:
        os.close(theirs)


def attend(lines: Iterable[str]) -> None:
    """Take in the ids of group leaders, one a line; kill their groups when there are no more lines."""
    started: dict[int, str] = {}
    for line in lines:
        word = line.strip()
        if word == FAREWELL:
            return
        started[int(word)] = _start_of(int(word))
    for leader, start in started.items():
        # Its id is not given to another process while anything of its group lives.
        if _start_of(leader) in (start, ""):
            kill_group(leader)


class Leader(int):
    """The id of a process that leads a group, of which it can be told when the id has become another process's.

    Make it while the process is there, or not reaped yet.
    """

    def __new__(cls, pid: int) -> Leader:
        """Take hold of the process that has this id now."""
        leader = super().__new__(cls, pid)
        leader._handle = None
        with suppress(AttributeError, OSError):  # not every system has them; it is gone, or there are no more
            leader._handle = os.pidfd_open(pid)
        return leader

    _handle: int | None

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    @property
    def reaped(self) -> bool:
        """Whether the process is known to be gone, so that its id may be another's."""
        if self._handle is None:
            return False
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it is there, and not ours to signal
            return False
        return False


class Leaders:
    """The leaders that are there, by id; used by one thread."""

    def __init__(self) -> None:
        self._found: dict[int, Leader] = {}

    def of(self, pid: int) -> Leader:
        """Return the process of this id, which is there now."""
        leader = self._found.get(pid)
        if leader is None or leader.reaped:
            self._found = {other: found for other, found in self._found.items() if not found.reaped}
            leader = self._found[pid] = Leader(pid)
        return leader


def kill_group(leader: int) -> None:
    """SIGKILL a process and what it has started, also when itself is gone; nothing if all is.

    Of a `Leader` that was reaped it is known whether its id, and so the group's, is another's by now: as long as
    anything of the group is left, no process gets that id.
    """
    reaped = isinstance(leader, Leader) and leader.reaped
    if reaped and _start_of(leader):
        return
    with suppress(ProcessLookupError, PermissionError):  # gone; or the id is somebody else's by now
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            if not reaped:
                os.kill(leader, signal.SIGKILL)  # it has not become the leader of a group yet


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
