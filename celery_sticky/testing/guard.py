"""A small process that kills the processes and removes the files in its care once their owner is gone.

It holds the read end of a pipe, which closes however the owner ends (kill -9 included). Servers and workers have no
parent-death signal of their own to rely on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from celery_sticky.testing.processes import end_leader, kill_session, stat
from celery_sticky.testing.servers import given


class Guard:
    """The owner's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery_sticky.testing.guard"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._process.pid

    def watch(self, leader: int, directory: Path | None = None, ending: int = signal.SIGKILL) -> int:
        """Take the session of `leader`, and its directory, into care; return the leader's start time.

        `ending` is the signal that ends the leader in order, with processes that have sessions of their own.
        """
        found = stat(leader)
        if found is None:
            raise ProcessLookupError(leader)
        care = {"leader": leader, "started": found.started, "directory": str(directory or ""), "ending": ending}
        self._tell(care)
        return found.started

    def forget(self, leader: int) -> None:
        """Drop a session that is known to be over."""
        self._tell({"leader": leader})

    def remove(self, directory: Path) -> None:
        """Delete this directory when the owner is gone."""
        self._tell({"remove": str(directory)})

    def clear(self, url: str, prefix: str) -> None:
        """Delete everything whose name starts with `prefix` at the server of a Kombu URL when the owner is gone."""
        self._tell({"clear": url, "prefix": prefix})

    def close(self) -> None:
        """Kill everything in care and end the guard. May be called twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, order: dict[str, Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()


def serve(lines: IO[str]) -> None:
    """Maintain the list that `lines` describes; at their end kill every session on it and do the chores."""
    care: dict[int, dict[str, Any]] = {}
    chores: list[dict[str, Any]] = []
    for line in lines:
        order = json.loads(line)
        if "leader" not in order:
            chores.append(order)
            continue
        care.pop(order["leader"], None)
        if "started" in order:
            care[order["leader"]] = order
    for leader, order in care.items():
        end_leader(leader, order["started"], order["ending"])
        kill_session(leader, order["started"])
        if order["directory"]:
            _remove(order["directory"])
    for order in chores:
        if "clear" in order:
            with contextlib.suppress(Exception):  # the server is gone or out of reach, and possibly the keys with it
                given(order["clear"]).clear(order["prefix"])
    for order in chores:
        if "remove" in order:
            _remove(order["remove"])


def _remove(directory: str) -> None:
    for _ in range(20):  # a process may write a last line while it dies
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(sys.stdin)
