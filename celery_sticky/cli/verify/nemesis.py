"""The nemesis: injects the faults of a plan, each when the cluster has recovered from the one before."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import chain

from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.jobs import STEADY
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.outcome import limit_of
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.timeline import Done, Frozen
from celery_sticky.testing import processes
from celery_sticky.testing.history import Kind
from celery_sticky.testing.worker import WorkerProcess

GRACE = 45.0
"""Seconds a worker may take to stop gracefully before it is killed."""
SETTLING = 20.0
"""Seconds within which all slots should be at their targets. The fault counts as over then at the latest."""


class Nemesis:
    """What faults act on: the cluster, and what they have in common."""

    def __init__(self, cluster: Cluster, observer: Observer, order: Callable[[Fault], None]) -> None:
        self.cluster, self.order = cluster, order
        """`order` has one of the senders carry out an `Order`."""
        self.draw = random.Random(f"faults-{cluster.run_options.seed}")
        self.frozen: list[Frozen] = []
        self._observer = observer

    def prepare(self, faults: Collection[Fault]) -> None:
        """Do what each kind of fault needs before the first one."""
        for fault in {type(fault): fault for fault in faults}.values():
            fault.prepare(self)

    def do(self, fault: Fault) -> Done:
        """Inject one fault, and wait until the slots have settled or `SETTLING` has passed."""
        done = Done(fault, since=time.monotonic_ns(), before=self._observer.view())
        fault.do(self, done)
        if fault.settles:
            self.settle(done)
        done.until = time.monotonic_ns()
        return done

    def settle(self, done: Done) -> None:
        """Wait until every slot is at its target and open there; plain Celery has no slots."""
        until = time.monotonic() + SETTLING
        while time.monotonic() < until:
            view = self._observer.settled(self.cluster.workers)
            if view is not None:
                done.after = done.after or view
                return
            if self.cluster.run_options.mode is not Mode.STICKY:
                return
            time.sleep(0.05)  # poll
        done.note = f"not settled within {SETTLING:.0f} s"

    def steady_job(self) -> str | None:
        """Return the worker in which the job of the key `STEADY` runs; None if it runs nowhere."""
        return self._observer.worker_of(STEADY, self.cluster.workers)

    @property
    def beyond_job_limit(self) -> float:
        """Twice the longest time in seconds for which a job may stand still."""
        return 2 * limit_of(self.cluster.site.eviction_timeout, self.cluster.run_options.ttl)

    def begun(self, key: str) -> bool:
        """Wait until a task of the key has begun; return False if none has within `SETTLING` seconds."""
        until = time.monotonic() + SETTLING
        while time.monotonic() < until:
            if any(event.kind is Kind.START and event.key == key for event in self._observer.events()):
                return True
            time.sleep(0.1)  # poll
        return False

    def end(self, names: Sequence[str], done: Done) -> list[WorkerProcess]:
        """Ask all these workers to stop at once, wait until they have, and return them."""
        workers = [self.cluster.retire(name) for name in names]
        pids = [worker.processes for worker in workers]
        for worker in workers:
            with suppress(ProcessLookupError):  # a poison message may have killed it already
                worker.kill(signal.SIGTERM)
        gone = processes.wait_gone(chain(*pids), GRACE)  # of all workers at once, so that each death is seen on time
        for worker, own in zip(workers, pids, strict=True):
            worker.deaths.update({pid: gone[pid] for pid in own if pid in gone})
            if not worker.wait_ended(1.0):  # its main thread may be gone before the others
                done.hit.add(worker.name)
                done.note = f"{worker.name} was killed: it was still running {GRACE:.0f} s after SIGTERM"
                worker.kill_all()
        return workers

    def succeed(self, gone: WorkerProcess, name: str) -> None:
        """Start the successor of a worker that has ended: itself, or a new one."""
        self.cluster.successor(gone.name, name)
        self.cluster.start(name, again=gone if gone.name == name else None)

    def ready(self, name: str) -> None:
        """Wait until a worker that was started is ready."""
        worker = self.cluster.workers[name]
        until = time.monotonic() + SETTLING
        while worker.alive and time.monotonic() < until and "ready." not in worker.log:
            time.sleep(0.05)  # poll
