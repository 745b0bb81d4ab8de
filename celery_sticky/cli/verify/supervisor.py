"""Restarts workers that a task has killed, as systemd or Kubernetes would, and records those that ended otherwise."""

from __future__ import annotations

import signal
import threading
import time

from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.faults.orders import Oom
from celery_sticky.cli.verify.timeline import Done

INTERVAL = 0.1
BEFORE = 1_000_000_000
"""Maximum delay between a worker's death and its detection, in nanoseconds."""


class Supervisor:
    """A thread that restarts workers while the nemesis injects faults."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.restarts: list[Done] = []
        self.crashes: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            with self._cluster.lock:
                for name, worker in self._cluster.workers.items():
                    if not worker.alive:
                        self._on_death(name)

    def _on_death(self, name: str) -> None:
        worker, at = self._cluster.workers[name], time.monotonic_ns()
        worker.deaths[worker.pid] = at
        if worker.returncode != -signal.SIGKILL:
            self.crashes.append(f"{name} ended with status {worker.returncode}; the end of its log:\n{worker.tail(15)}")
        spell = int(2 * self._cluster.site.eviction_timeout * 1e9)  # until its slots run again, here or elsewhere
        self.restarts.append(Done(Oom(workers=(name,), number=0), at - BEFORE, at + spell, {name}))
        self._cluster.revive(name)
