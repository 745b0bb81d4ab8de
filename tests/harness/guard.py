"""Nothing outlives the tests: a small process that kills what was put in its care when pytest is gone.

It holds the read end of a pipe; however pytest ends (kill -9 included), the pipe closes. Servers and workers have no
parent-death signal of their own that the tests could rely on.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from harness.processes import kill_session, stat


class Guard:
    """The tests' end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.guard"],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._process.pid

    def watch(self, leader: int, directory: Path | None = None) -> int:
        """Take the session of `leader`, and its directory, into care; return the leader's start time."""
        found = stat(leader)
        if found is None:
            raise ProcessLookupError(leader)
        self._tell({"leader": leader, "started": found.started, "directory": str(directory or "")})
        return found.started

    def forget(self, leader: int) -> None:
        """The session is known to be over."""
        self._tell({"leader": leader})

    def close(self) -> None:
        """Kill what is still in care and end the guard."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, order: dict[str, Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()


def serve(lines: IO[str]) -> None:
    """Keep the list that `lines` tells; when they end, kill every session on it and remove its directory."""
    care: dict[int, dict[str, Any]] = {}
    for line in lines:
        order = json.loads(line)
        care.pop(order["leader"], None)
        if "started" in order:
            care[order["leader"]] = order
    for leader, order in care.items():
        kill_session(leader, order["started"])
        if order["directory"]:
            shutil.rmtree(order["directory"], ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(sys.stdin)
