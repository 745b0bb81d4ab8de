"""The processes that publish."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.load import Load

SENDERS = 2
BUSY = 0.4
"""Share of the capacity of all initial workers that the load uses."""
LONGEST = 0.4
"""Longest duration of an ordinary task, in seconds."""
TIMEOUT = 20.0
"""Seconds a sender may take to send the tasks it was ordered to send."""


class Senders:
    """Two sender processes. They start with this object and end with the `with` block."""

    def __init__(self, cluster: Cluster, kinds: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._draw = random.Random(f"senders-{cluster.run_options.seed}")
        self._processes: list[subprocess.Popen[str]] = []
        for number in range(SENDERS):
            self._processes.append(self._start(number, kinds))

    def _start(self, number: int, kinds: tuple[str, ...]) -> subprocess.Popen[str]:
        run_options, site = self._cluster.run_options, self._cluster.site
        load = Load(
            sender=number,
            senders=SENDERS,
            seed=run_options.seed,
            rate=run_options.rate / SENDERS,
            keys=run_options.keys,
            longest=min(LONGEST, 2 * BUSY * run_options.capacity / run_options.rate),
            kinds=kinds,
        )
        own = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
        with (Path(site.folder) / f"sender{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery_sticky.cli.verify.load"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**own, **site.environ(), **load.environ()},
                start_new_session=True,
                text=True,
                bufsize=1,
            )
        self._cluster.guard.watch(process.pid)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        self.end()

    @property
    def alive(self) -> bool:
        """Whether all senders are still running."""
        return all(process.poll() is None for process in self._processes)

    def order(self, order: Fault) -> None:
        """Have one of the senders carry out an `Order`."""
        sender = self._draw.choice(self._processes)
        if sender.stdin is not None and sender.poll() is None:
            sender.stdin.write(json.dumps({"send": order.name, **order.detail}) + "\n")
            sender.stdin.flush()

    def end(self) -> None:
        """Let the senders finish their orders and end. May be called twice."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)
            self._cluster.guard.forget(process.pid)
        self._processes.clear()
