"""The cluster of a run: servers, workers, senders, proxies. A guard ends all processes, however the run ends."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from celery_sticky.cli.verify import faketime
from celery_sticky.cli.verify.jobs import job_keys
from celery_sticky.cli.verify.load import load_keys
from celery_sticky.cli.verify.placed import Placed, to_pin
from celery_sticky.cli.verify.site import HOST, Mode, Site, queue_of
from celery_sticky.testing import processes
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.proxy import Proxy
from celery_sticky.testing.sentinel import WatchedPair
from celery_sticky.testing.server import ValkeyServer
from celery_sticky.testing.worker import WorkerProcess

APP = "celery_sticky.cli.verify.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command line."""

    mode: Mode = Mode.STICKY
    broker: str | None = None
    store: str | None = None
    pool: str = "prefork"
    concurrency: int = 2
    workers: int = 4
    keys: int = 200
    rate: float = 40.0
    seconds: float = 60.0
    faults: tuple[str, ...] = ()
    seed: int = 0
    ttl: float = 3.0
    slots: int = 64
    jobs: int = 20
    placed: Placed | None = None

    @property
    def pinned(self) -> list[str]:
        """The keys that workers pin, if the run uses a placed keyspace."""
        if self.placed is None:
            return []
        return to_pin(self.placed, load_keys(self.keys)) + to_pin(self.placed, job_keys(self.jobs))

    @property
    def single(self) -> bool:
        """Whether a worker runs one task at a time, regardless of `concurrency`."""
        return self.mode is Mode.HASH or self.pool == "solo"

    @property
    def capacity(self) -> int:
        """Number of tasks that the initial workers can run at a time."""
        return self.workers * (1 if self.single else self.concurrency)


class Cluster:
    """Starts and ends the processes of the cluster. None is left after `close`."""

    def __init__(
        self, run_options: RunOptions, *, proxied: frozenset[str], clock: str | None, fails_over: bool = False
    ) -> None:
        self.run_options, self._proxied, self._clock, self._fails_over = run_options, proxied, clock, fails_over
        self.guard, self.lock = Guard(), threading.RLock()
        self.workers: dict[str, WorkerProcess] = {}
        self.gone: list[WorkerProcess] = []
        self.proxies: dict[str, tuple[Proxy, Proxy]] = {}
        self._queues: dict[str, str] = {}
        try:
            self._prepare()
        except BaseException:
            self.guard.close()
            raise

    def _prepare(self) -> None:
        run_options = self.run_options
        folder = Path(tempfile.mkdtemp(prefix="sticky-verify-"))
        self.guard.remove(folder)
        self.broker = self.store = self.results = None
        self.pair: WatchedPair | None = None
        broker, store, prefix = run_options.broker, run_options.store, ""
        if broker is None and self._fails_over:
            self.pair = WatchedPair(self.guard, folder)
            broker = self.pair.url
        elif broker is None:
            self.broker = ValkeyServer(self.guard, appendonly=True).start()
            broker = self.broker.url
        if store is None and run_options.broker is None and run_options.mode is Mode.STICKY:
            self.store = ValkeyServer(self.guard).start()
            store = self.store.url
        if "backend-away" in run_options.faults and run_options.mode is Mode.STICKY:
            self.results = ValkeyServer(self.guard).start()
        if run_options.broker is not None or run_options.store is not None:
            prefix = f"sticky-verify-{uuid.uuid4().hex[:8]}:"
            for url in filter(None, (run_options.broker, run_options.store)):
                self.guard.clear(url, prefix)
        self.site = Site(
            mode=run_options.mode,
            broker=broker,
            store=store or "",
            prefix=prefix,
            folder=str(folder),
            slots=run_options.slots,
            workers=run_options.workers,
            ttl=run_options.ttl,
            jobs=run_options.jobs if run_options.mode is Mode.STICKY else 0,
            placed=run_options.placed,
            pinned=run_options.pinned,
            seed=run_options.seed,
            results=self.results.url if self.results is not None else "",
            options=self.pair.options if self.pair is not None else {},
        )

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
            pair = (_proxy_to(site.broker), _proxy_to(site.store or site.broker))
            self.proxies[name] = pair
        if name in self.proxies:
            broker, store = self.proxies[name]
            site = replace(site, broker=_through(site.broker, broker), store=_through(site.store or site.broker, store))
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

    def close(self) -> None:
        """Kill the processes that still run, and wait for the guard's cleanup. May be called twice."""
        for worker in (*self.workers.values(), *self.gone):
            worker.teardown()
        for pair in self.proxies.values():
            for proxy in pair:
                proxy.teardown()
        for server in filter(None, (self.broker, self.store, self.results)):
            server.teardown()
        if self.pair is not None:
            self.pair.teardown()
        self.guard.close()


def can_proxy(url: str) -> bool:
    """Return True if a proxy can be put in front of this server."""
    parts = urlsplit(url)
    return parts.scheme == "redis" and bool(parts.hostname)


def _proxy_to(url: str) -> Proxy:
    parts = urlsplit(url)
    return Proxy(parts.port or 6379, parts.hostname or "127.0.0.1").start()


def _through(url: str, proxy: Proxy) -> str:
    parts = urlsplit(url)
    who, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{who}{at}127.0.0.1:{proxy.port}"))


def session_of(worker: WorkerProcess) -> list[int]:
    """Return the ids of a worker's processes."""
    return processes.in_session(worker.pid)


def now() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""
    return time.monotonic_ns()
