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
    from celery_sticky.worker.spawn import spawn  # not above: the program itself imports nothing of ours

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


def kill_group(leader: int) -> None:
    """SIGKILL a process and what it has started, also when itself is gone; nothing if all is."""
    with suppress(ProcessLookupError, PermissionError):  # gone; or the id is somebody else's by now
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
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
