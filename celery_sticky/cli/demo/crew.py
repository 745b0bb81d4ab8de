"""The processes of the demo: the server, and the workers. A guard sees to it that none is left, however it ends."""

from __future__ import annotations

import signal
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from celery_sticky.cli.demo.app import Demo
from celery_sticky.errors import StickyError
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.server import ValkeyServer
from celery_sticky.testing.worker import WorkerProcess

HOST = "demo"
CONCURRENCY = 2


class Crew:
    """Starts and ends the processes; at its end none is left."""

    def __init__(self, broker: str | None) -> None:
        self._guard = Guard()
        self._workers: dict[str, WorkerProcess] = {}
        try:
            folder = tempfile.mkdtemp(prefix="sticky-demo-")
            self._guard.remove(Path(folder))
            if broker is None:
                self.demo = Demo(ValkeyServer(self._guard, unix=True).start().url, "", folder)
            else:
                self.demo = Demo(broker, f"sticky-demo-{uuid.uuid4().hex[:8]}:", folder)
                self._guard.clear(broker, self.demo.prefix)
        except BaseException:
            self._guard.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Start a worker; does not wait for it."""
        folder = Path(self.demo.folder)
        self._workers[name] = WorkerProcess(
            self._guard,
            folder,
            app="celery_sticky.cli.demo.worker",
            name=name,
            host=HOST,
            concurrency=CONCURRENCY,
            env=self._environ(),
        ).start()

    def kill(self, name: str) -> int:
        """SIGKILL a worker's main process; return when it was dead, in CLOCK_MONOTONIC nanoseconds."""
        self._workers.pop(name).kill()
        return time.monotonic_ns()

    def stop_all(self, timeout: float) -> None:
        """Let the workers end as at any deployment: SIGTERM; SIGKILL for what is left after `timeout` seconds."""
        for worker in self._workers.values():
            worker.kill(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for worker in self._workers.values():
            worker.wait_ended(max(0.0, deadline - time.monotonic()))
            worker.teardown()
        self._workers.clear()

    def check(self) -> None:
        """Look after the workers.

        Raises:
            StickyError: one has ended by itself; the message has the end of its log.
        """
        for name, worker in self._workers.items():
            if not worker.alive:
                raise StickyError(f"worker {name} ended with {worker.returncode}; its log ends:\n{worker.tail(15)}")

    def close(self) -> None:
        """Kill what still runs and wait until the guard has cleared up. May be called twice."""
        for worker in self._workers.values():
            worker.teardown()
        self._guard.close()

    def _environ(self) -> Mapping[str, str]:
        # What a killed worker leaves in its temporary folder goes with ours.
        return {**self.demo.environ(), "TMPDIR": self.demo.folder}


def node(name: str) -> str:
    """Return the node name of a worker."""
    return f"{name}@{HOST}"


def short(node_name: str) -> str:
    """Return a worker's name from its node name."""
    return node_name.partition("@")[0]
