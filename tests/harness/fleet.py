"""The tools for one test of workers: an app, a history, and the worker processes that the test starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from celery_sticky.cli.session import Session
from celery_sticky.stores.first_document import write_first
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.judge import Judgement, judge
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess
from harness.app import AppConfig, make_app

TESTS = Path(__file__).parent.parent


class Fleet:
    """Workers of one app on one broker. All processes write to one history."""

    def __init__(self, guard: Guard, directory: Path, config: AppConfig) -> None:
        self._guard, self._directory, self.config = guard, directory, config
        self.app: Celery = make_app(config)
        self.history = Recorder(config.history)
        self.workers: dict[str, WorkerProcess] = {}

    def init(self) -> Fleet:
        """Write the first document of each keyspace, so that the first worker need not wait for leases to expire."""
        with Session(self.app) as session:
            for keyspace in session.keyspaces:
                settings = session.settings
                hash_name = settings.hash_of(keyspace)
                write_first(session.store(keyspace), settings.slots_of(keyspace), hash_name=hash_name)
        return self

    def worker(self, name: str = "w1", *, ready: bool = True, **options: Any) -> WorkerProcess:
        """Start a worker with these options of `WorkerProcess`; with `ready`, wait until it is ready."""
        assert name not in self.workers, f"worker {name} exists already: call its start()"
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(path for path in paths if path)
        environ = {"PYTHONPATH": path, **self.config.environ(), **options.pop("env", {})}
        options.setdefault("app", "harness.worker_app")
        worker = WorkerProcess(self._guard, self._directory, name=name, env=environ, **options)
        self.workers[name] = worker
        worker.start()
        return worker.wait_ready() if ready else worker

    def send(self, key: str, n: int, seconds: float = 0.0, **options: Any) -> AsyncResult:
        """Send task `n` of `key` and record that the broker accepted it."""
        result = self.app.tasks["record"].apply_async((key, n, seconds), **options)
        self.history.published(key, n, result.id)
        return result

    def send_plain(self, n: int, seconds: float = 0.0, **options: Any) -> AsyncResult:
        """Send an unkeyed task and record that the broker accepted it."""
        result = self.app.tasks["plain"].apply_async((n, seconds), **options)
        self.history.published("plain", n, result.id)
        return result

    def events(self) -> list[Event]:
        """Return the history so far."""
        return self.history.events()

    def started(self, key: str, n: int) -> Event | None:
        """Return the latest START event of a task, or None."""
        starts = [e for e in self.events() if e.kind is Kind.START and (e.key, e.n) == (key, n)]
        return starts[-1] if starts else None

    def wait_started(self, key: str, n: int, timeout: float = 30.0) -> Event:
        """Wait until a task starts, and return its START event."""
        found = wait_until(lambda: self.started(key, n), timeout, f"{key} #{n} starts\n{self}")
        assert found is not None
        return found

    def wait_finished(self, timeout: float = 60.0) -> None:
        """Wait until every published task has finished."""
        wait_until(
            lambda: not self.judge().lost, timeout, f"every task finishes: {self.judge().describe()}\n{self}", 0.1
        )

    def judge(self) -> Judgement:
        """Judge the history so far, with the recorded deaths of workers."""
        return judge(self.events(), self.deaths)

    @property
    def deaths(self) -> Mapping[int, int]:
        """The time of death of each killed process, by pid."""
        return {pid: at for worker in self.workers.values() for pid, at in worker.deaths.items()}

    def __str__(self) -> str:
        return "\n".join(f"{worker!r}\n{worker.tail(15)}" for worker in self.workers.values())

    def teardown(self) -> None:
        """End all workers and close all connections."""
        for worker in self.workers.values():
            worker.teardown()
        self._forget_results()
        self.app.close()

    def _forget_results(self) -> None:
        # A pending result unsubscribes when it is garbage-collected; by then the server may be gone.
        backend = self.app.backend
        if (consumer := getattr(backend, "result_consumer", None)) is not None:
            consumer.subscribed_to.clear()
            consumer.stop()
            backend.client.connection_pool.disconnect()
