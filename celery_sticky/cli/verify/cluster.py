"""The cluster of a run: servers, workers, senders, proxies. A guard ends all processes, however the run ends."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from celery_sticky.cli.verify import faketime
from celery_sticky.cli.verify.bad_jobs import bad_keys
from celery_sticky.cli.verify.jobs import job_keys
from celery_sticky.cli.verify.load import load_keys
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.placed import to_pin
from celery_sticky.cli.verify.servers import Servers
from celery_sticky.cli.verify.site import HOST, Mode, Site, queue_of
from celery_sticky.errors import StickyError
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.proxy import Proxy
from celery_sticky.testing.worker import WorkerProcess

APP = "celery_sticky.cli.verify.worker"


class Cluster:
    """Starts and ends the processes of the cluster. None is left after `close`."""

    def __init__(
        self,
        run_options: RunOptions,
        *,
        proxied: Collection[str] = (),
        clock: str | None = None,
        fails_over: bool = False,
        results: bool = False,
    ) -> None:
        """Start the servers.

        Args:
            run_options: the options of the command line.
            proxied: the workers that may be cut off from the servers.
            clock: the libfaketime that gives each worker its own wall clock.
            fails_over: the broker is a pair that fails over.
            results: workers store results, on a separate server.
        """
        self.run_options, self._proxied, self._clock = run_options, proxied, clock
        self.guard, self.lock = Guard(), threading.RLock()
        self.workers: dict[str, WorkerProcess] = {}
        self.gone: list[WorkerProcess] = []
        self.proxies: dict[str, tuple[Proxy, Proxy]] = {}
        self._queues: dict[str, str] = {}
        self.held = ExitStack()
        """What stays in place until the end of the run."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="sticky-verify-"))
            self.guard.remove(folder)
            self.servers = Servers(run_options, self.guard, folder, fails_over=fails_over, results=results)
            self.site = _site(run_options, self.servers, folder)
        except BaseException:
            self.guard.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- workers -----------------------------------------------------------------------------------

    def start(self, name: str, *, again: WorkerProcess | None = None) -> None:
        """Start a new worker, or start `again`, one that has ended. This does not wait for it."""
        with self.lock:
            if again is None:
                self.workers[name] = self._made(name)
            else:
                self.gone.remove(again)
                self.workers[name] = again
            self.workers[name].start()

    def revive(self, name: str) -> None:
        """Restart a worker that ended by itself, as a supervisor does."""
        with self.lock:
            self.workers[name].start()

    def _made(self, name: str) -> WorkerProcess:
        options: list[str] = []
        if self.run_options.mode is not Mode.STICKY:
            options = ["-Q", self._queue(name), "--prefetch-multiplier", "4"]
        return WorkerProcess(
            self.guard,
            Path(self.site.folder),
            app=APP,
            name=name,
            host=HOST,
            pool=self.run_options.pool,
            concurrency=1 if self.run_options.single else self.run_options.concurrency,
            env=self._environ(name),
            args=options,
        )

    def retire(self, name: str) -> WorkerProcess:
        """Remove this worker from those that must run, and return it."""
        with self.lock:
            worker = self.workers.pop(name)
            self.gone.append(worker)
        return worker

    def successor(self, old: str, new: str) -> None:
        """With plain Celery, make the worker `new` read the queue that `old` read."""
        if self.run_options.mode is not Mode.STICKY:
            self._queues[new] = self._queue(old)

    def _queue(self, name: str) -> str:
        if self.run_options.mode is Mode.QUEUE:
            return queue_of(0)
        if name not in self._queues:
            self._queues[name] = queue_of(len(self._queues) % self.run_options.workers)
        return self._queues[name]

    def _environ(self, name: str) -> Mapping[str, str]:
        site = self.site
        if name in self._proxied and name not in self.proxies:
            self.proxies[name] = (Proxy(site.broker).start(), Proxy(site.store or site.broker).start())
        if name in self.proxies:
            broker, store = self.proxies[name]
            site = replace(site, broker=broker.url, store=store.url)
        environ = {**site.environ(), "TMPDIR": site.folder}
        if self._clock is not None:
            self.set_clock(name, 0)
            environ |= faketime.environ(self._clock, self._clock_file(name))
        return environ

    def set_clock(self, name: str, seconds: int) -> None:
        """Set the wall clock of a worker `seconds` ahead."""
        faketime.set_clock(self._clock_file(name), seconds)

    def _clock_file(self, name: str) -> Path:
        return Path(self.site.folder) / f"{name}.clock"

    @property
    def deaths(self) -> dict[int, int]:
        """Process id -> time of death, for processes that were killed."""
        return {pid: at for worker in (*self.workers.values(), *self.gone) for pid, at in worker.deaths.items()}

    # -- the end -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that all workers are running.

        Raises:
            StickyError: a worker has ended by itself; the message contains the end of its log.
        """
        for name, worker in self.workers.items():
            if not worker.alive:
                raise StickyError(
                    f"worker {name} ended with status {worker.returncode}; the end of its log:\n{worker.tail(15)}"
                )

    def stop_workers(self, timeout: float) -> None:
        """Stop the workers as a deployment does: SIGTERM, then SIGKILL for those left after `timeout` seconds."""
        workers = [worker for worker in self.workers.values() if worker.alive]
        for worker in workers:
            worker.kill(signal.SIGTERM)
        until = time.monotonic() + timeout
        for worker in workers:
            if not worker.wait_ended(max(0.0, until - time.monotonic())):
                worker.kill_all()

    def close(self) -> None:
        """Kill the processes that still run, and wait for the guard's cleanup. May be called twice."""
        for worker in (*self.workers.values(), *self.gone):
            worker.teardown()
        for pair in self.proxies.values():
            for proxy in pair:
                proxy.teardown()
        self.held.close()
        self.servers.teardown()
        self.guard.close()


def _site(run_options: RunOptions, servers: Servers, folder: Path) -> Site:
    sticky = run_options.mode is Mode.STICKY
    return Site(
        mode=run_options.mode,
        broker=servers.broker.url,
        store=servers.store.url if servers.store is not None else "",
        prefix=servers.prefix,
        folder=str(folder),
        slots=run_options.slots,
        workers=run_options.workers,
        ttl=run_options.ttl,
        jobs=run_options.jobs if sticky else 0,
        isolated=run_options.isolated,
        placed=run_options.placed,
        pinned=_pinned(run_options),
        seed=run_options.seed,
        results=servers.results.url if servers.results is not None else "",
        options=servers.options(),
    )


def _pinned(run_options: RunOptions) -> list[str]:
    """Return the keys that workers pin, if the run uses a placed keyspace."""
    if run_options.placed is None:
        return []
    keys = (load_keys(run_options.keys), job_keys(run_options.jobs), bad_keys() if run_options.jobs else [])
    return [key for some in keys for key in to_pin(run_options.placed, some)]
