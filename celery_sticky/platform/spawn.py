"""Starts programs beside a worker, even if gevent or eventlet have replaced `subprocess` and `os.waitpid`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from celery_sticky.platform.native import original

UNKNOWN_STATUS = 255
"""The exit status of a program that other code in this process has reaped; asyncio uses the same value."""

_ABOVE = 64
"""Descriptors are first copied to numbers from here on, so that none is overwritten before it is passed on."""


def spawn(command: Sequence[str], descriptors: Mapping[int, int], *, session: bool = False) -> int:
    """Start a program that leads its own process group, or session; return its process id.

    It shares our standard output and error. It gets `descriptors`: number in the program, below 64 -> number here. Its
    standard input is empty, unless it is among them.

    Raises:
        OSError: the program cannot be started.
    """
    leads: dict[str, Any] = {"setsid": True} if session else {"setpgroup": 0}
    with ExitStack() as copies:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        for there, here in descriptors.items():
            copy = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
            copies.callback(os.close, copy)
            actions.append((os.POSIX_SPAWN_DUP2, copy, there))
        start = original("os", "posix_spawn")
        pid: int = start(command[0], command, os.environ, file_actions=actions, **leads)
    return pid


def reap(pid: int, last: Callable[[], None]) -> int:
    """Wait, in an operating system thread, until a program has ended; return its exit status.

    A negative status is the signal that ended it. `last` is called while the process id and group id are certainly
    still its own (if the platform has `waitid`), and once more at the end.
    """
    try:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            last()
        return os.waitstatus_to_exitcode(original("os", "waitpid")(pid, 0)[1])
    except ChildProcessError:  # gevent reaps every child of the process once its hub has watched one
        return UNKNOWN_STATUS
    finally:
        last()
