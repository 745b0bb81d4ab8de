"""Workers and their child processes die without warning."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.testing import processes
from celery_sticky.testing.worker import WorkerProcess

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.options import RunOptions
    from celery_sticky.cli.verify.timeline import Done

CASCADE_PAUSE = 0.2
"""Seconds between two deaths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(Fault):
    """SIGKILL to a worker's main process; it starts again when others own its slots."""

    name: ClassVar[str] = "kill"
    takes: ClassVar[float] = 3.0
    evictions: ClassVar[int] = 1

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker, and the name under which it starts again."""
        name = cast.one()
        return cls(workers=(name,), starts=(cast.replaced(name),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Kill the main process; its children must end by themselves."""
        (name,), (successor,) = self.workers, self.starts
        worker = nemesis.cluster.retire(name)
        done.hit.add(name)
        pids = worker.processes
        worker.kill()
        done.since = worker.deaths[worker.pid]
        worker.deaths.update(processes.wait_gone(pids, timeout=nemesis.cluster.site.eviction_timeout))
        nemesis.settle(done)
        nemesis.succeed(worker, successor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade(Fault):
    """SIGKILL to all processes of a worker, and a moment later to those of a second one."""

    name: ClassVar[str] = "cascade"
    takes: ClassVar[float] = 4.0
    evictions: ClassVar[int] = 1
    least: ClassVar[int] = 3

    @classmethod
    def impossible(cls, options: RunOptions) -> str | None:
        """Refuse a run with too few workers."""
        return f"it kills two of at least {cls.least} workers" if options.workers < cls.least else None

    @classmethod
    def draft(cls, cast: Cast) -> Self | None:
        """Choose two workers, and the names under which they start again."""
        if len(cast.everybody) < cls.least:
            return None
        names = cast.some(2)
        return cls(workers=names, starts=tuple(map(cast.replaced, names)))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Kill both; start them again when others own their slots."""
        gone: list[WorkerProcess] = []
        for name in self.workers:
            if gone:
                time.sleep(CASCADE_PAUSE)  # the fault itself
            gone.append(nemesis.cluster.retire(name))
            done.hit.add(name)
            gone[-1].kill_all()
        done.since = gone[0].deaths[gone[0].pid]
        nemesis.settle(done)
        for worker, successor in zip(gone, self.starts, strict=True):
            nemesis.succeed(worker, successor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKill(Fault):
    """SIGKILL to a process of the pool."""

    name: ClassVar[str] = "child-kill"
    settles: ClassVar[bool] = False

    @classmethod
    def impossible(cls, options: RunOptions) -> str | None:
        """Refuse pools without processes."""
        return None if options.pool == "prefork" else f"workers of the pool {options.pool} have no child processes"

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker."""
        return cls(workers=(cast.one(),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Kill a child of the worker."""
        (name,) = self.workers
        worker = nemesis.cluster.workers[name]
        children = worker.children
        if not children:
            done.note = "the worker had no child at that moment"
            return
        done.hit.add(name)
        victim = nemesis.draw.choice(children)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        worker.deaths.update(processes.wait_gone([victim], timeout=5.0))
        time.sleep(0.3)  # its runs may start again only now, and must count to this fault
