"""The processes of the demo: the server and the workers. A guard ends all of them, however the demo ends."""

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
    """Starts and ends the processes. None is left after `close`."""

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
        """Start a worker without waiting for it."""
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
        """SIGKILL a worker's main process; return the time of its death in CLOCK_MONOTONIC nanoseconds."""
        self._workers.pop(name).kill()
        return time.monotonic_ns()

    def stop_all(self, timeout: float) -> None:
        """Stop the workers as a deployment does: SIGTERM, then SIGKILL for those left after `timeout` seconds."""
        for worker in self._workers.values():
            worker.kill(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for worker in self._workers.values():
            worker.wait_ended(max(0.0, deadline - time.monotonic()))
            worker.teardown()
        self._workers.clear()

    def check(self) -> None:
        """Check that all workers are running.

        Raises:
            StickyError: a worker has ended by itself; the message contains the end of its log.
        """
        for name, worker in self._workers.items():
            if not worker.alive:
                raise StickyError(
                    f"worker {name} ended with status {worker.returncode}; the end of its log:\n{worker.tail(15)}"
                )

    def close(self) -> None:
        """Kill the processes that still run, and wait for the guard's cleanup. May be called twice."""
        for worker in self._workers.values():
            worker.teardown()
        self._guard.close()

    def _environ(self) -> Mapping[str, str]:
        # A killed worker leaves files in its temporary folder. Inside our folder they are deleted at the end.
        return {**self.demo.environ(), "TMPDIR": self.demo.folder}


def node(name: str) -> str:
    """Return the node name of a worker."""
    return f"{name}@{HOST}"


def short(node_name: str) -> str:
    """Return a worker's name from its node name."""
    return node_name.partition("@")[0]
