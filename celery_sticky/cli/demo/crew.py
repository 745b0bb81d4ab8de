"""The processes of the demo: the guard with its server, and the workers. Each is in a session of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from celery_sticky.cli.demo.app import Demo
from celery_sticky.cli.demo.guard import socket_in
from celery_sticky.errors import StickyError

LONGEST_SOCKET = 90
"""A unix socket's path has at most about 107 bytes."""
HOST = "demo"
CONCURRENCY = 2


class Crew:
    """Starts and ends the processes; at its end none is left."""

    def __init__(self, broker: str | None) -> None:
        folder = tempfile.mkdtemp(prefix="sticky-demo-")
        if len(socket_in(folder)) > LONGEST_SOCKET:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="sticky-demo-", dir="/tmp")
        prefix = "" if broker is None else f"sticky-demo-{uuid.uuid4().hex[:8]}:"
        self.demo = Demo(broker or f"redis+socket://{socket_in(folder)}", prefix, folder)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "celery_sticky.cli.demo.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        self._tell(json.dumps({"broker": broker, "prefix": prefix, "folder": folder}))

    def __enter__(self) -> Self:
        assert self._guard.stdout is not None
        answer = json.loads(self._guard.stdout.readline() or '{"error": "the process that runs the server ended"}')
        if "error" in answer:
            self.close()
            raise StickyError(answer["error"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Start a worker; does not wait for it."""
        command = [sys.executable, "-m", "celery", "-A", "celery_sticky.cli.demo.worker", "worker", "-n", node(name)]
        command += ["-P", "prefork", "-c", str(CONCURRENCY), "-l", "INFO", "--without-gossip", "--without-mingle"]
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.demo.folder,
                env=self._environ(),
                start_new_session=True,
            )
        self._workers[name] = process
        self._tell(f"watch {process.pid}")

    def kill(self, name: str) -> int:
        """SIGKILL a worker's main process; return when it was dead, in CLOCK_MONOTONIC nanoseconds."""
        self._workers[name].kill()
        self._reap(name)
        return time.monotonic_ns()

    def stop_all(self, timeout: float) -> None:
        """Let the workers end as at any deployment: SIGTERM; SIGKILL for what is left after `timeout` seconds."""
        for process in self._workers.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for name, process in list(self._workers.items()):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            self._reap(name)

    def check(self) -> None:
        """Look after the workers.

        Raises:
            StickyError: one has ended by itself; the message has the end of its log.
        """
        for name, process in self._workers.items():
            if process.poll() is not None:
                last = "\n".join(self._log(name).read_text(errors="replace").splitlines()[-15:])
                raise StickyError(f"worker {name} ended with {process.returncode}; its log ends:\n{last}")

    def close(self) -> None:
        """Kill what still runs and wait until the guard has cleared up. May be called twice."""
        for process in self._workers.values():
            process.kill()
        for name in list(self._workers):
            self._reap(name)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait(timeout=30)
        if self._guard.stdout is not None:
            self._guard.stdout.close()

    def _reap(self, name: str) -> None:
        process = self._workers.pop(name)
        process.wait(timeout=10)
        self._tell(f"forget {process.pid}")

    def _tell(self, order: str) -> None:
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.write(order + "\n")
            self._guard.stdin.flush()

    def _log(self, name: str) -> Path:
        return Path(self.demo.folder) / f"{name}.log"

    def _environ(self) -> Mapping[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
        # What a killed worker leaves in its temporary folder goes with ours.
        return {**own, **self.demo.environ(), "C_FORCE_ROOT": "1", "TMPDIR": self.demo.folder}


def node(name: str) -> str:
    """Return the node name of a worker."""
    return f"{name}@{HOST}"


def short(node_name: str) -> str:
    """Return a worker's name from its node name."""
    return node_name.partition("@")[0]
