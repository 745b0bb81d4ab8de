"""A fleet of one placed keyspace: short leases, and a client of its placement store."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery.result import AsyncResult
from kombu import Connection

from celery_sticky import Sticky
from celery_sticky.cli.session import Session
from celery_sticky.drivers import open_placement_store, open_store
from celery_sticky.errors import StickyError
from celery_sticky.ownership.view import View
from celery_sticky.queues.inspection import Dead, Depth
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.first_document import write_first
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess
from harness import placed_tasks
from harness.app import AppConfig
from harness.fleet import Fleet
from harness.jobs_fleet import JOB_CONF
from harness.keyed_fleet import CONF, node

SLOTS = 16


class PlacedFleet(Fleet):
    """Workers that take part in one of the keyspaces of `placed_tasks`."""

    def __init__(
        self,
        guard: Guard,
        directory: Path,
        broker: str,
        keyspace: str,
        *,
        jobs: bool = False,
        backend: str | None = None,
        **settings: Any,
    ) -> None:
        self.has_jobs = jobs
        conf = {
            **CONF,
            **(JOB_CONF if jobs else {}),
            "sticky_runtime_dir": str(directory / "run"),
            "task_ignore_result": False,
            **settings,
        }
        conf["sticky_slots"] = SLOTS
        super().__init__(guard, directory, AppConfig(broker, directory / "history.jsonl", backend or broker, conf=conf))
        placed_tasks.register(self.app, self.config.history)
        self.keyspace = keyspace
        self._numbers: Counter[str] = Counter()
        connection = Connection(broker)
        self.store = open_store(connection, keyspace)
        self.placement_store = open_placement_store(connection, keyspace)
        self.session = Session(self.app)
        write_first(self.store, SLOTS, hash_name=self.session.settings.hash_of(keyspace))

    def worker(self, name: str = "w1", *, ready: bool = True, **options: Any) -> WorkerProcess:
        """Start a worker of this keyspace only. It also consumes unkeyed tasks from a queue that has its name."""
        options.setdefault("app", "harness.placed_app")
        if self.has_jobs:
            options["env"] = {"STICKY_TEST_JOBS": "1", **options.pop("env", {})}
        keyspaces = options.pop("keyspaces", self.keyspace)
        args = (*options.pop("args", ()), "--sticky-keyspaces", keyspaces, "-Q", name)
        return super().worker(name, ready=ready, args=args, **options)

    def up(self, *names: str, **options: Any) -> list[WorkerProcess]:
        """Start workers, and wait until they and the earlier ones are the members."""
        started = [self.worker(name, ready=False, **options) for name in names]
        for worker in started:
            worker.wait_ready()
        self.wait_members(*self.workers)
        return started

    def call(self, key: str, *args: Any, task: str = "record", **options: Any) -> AsyncResult:
        """Send the next task of a key."""
        n = self._numbers[key]
        self._numbers[key] += 1
        result = self.app.tasks[f"{self.keyspace}.{task}"].apply_async((key, n, *args), **options)
        self.history.published(key, n, result.id, keyspace=self.keyspace)
        return result

    def publish_many(self, tasks: int, keys: int, seconds: float = 0.0) -> None:
        """Send tasks to this many keys in turn."""
        with self.app.producer_or_acquire() as producer:
            for i in range(tasks):
                self.call(f"k{i % keys}", seconds, producer=producer)

    def on(self, worker: str, task: str, *args: Any) -> Any:
        """Run an unkeyed task in this worker and return its result."""
        return self.app.tasks[task].apply_async(args, queue=worker).get(timeout=30)

    # -- state ---------------------------------------------------------------------------------

    def view(self) -> View:
        """Return the ownership document."""
        view = self.store.read().view
        assert view is not None
        return view

    def wait_members(self, *names: str, timeout: float = 30.0) -> View:
        """Wait until exactly these workers are the members and share the slots."""
        wanted = {node(name) for name in names}

        def there() -> View | None:
            with suppress(StickyError):
                view = self.view()
                return view if set(view.members) == wanted and view.settled and not view.unowned else None
            return None

        view = wait_until(there, timeout, f"{sorted(wanted)} are the members\n{self}", 0.02)
        assert view is not None
        return view

    def depth(self, place: int | str) -> Depth:
        """Return the depth of the queue of a slot, or of the worker queue of a worker given by its short name."""
        slot = WorkerQueue(node(place)) if isinstance(place, str) else place
        return self.session.queues.depths([(self.keyspace, slot)])[self.keyspace, slot]

    def dead(self) -> list[Dead]:
        """Return the buried messages."""
        return list(self.session.queues.dead(self.keyspace))

    def empty(self, worker: str) -> bool:
        """Return whether the worker queue of a worker is empty."""
        depth = self.depth(worker)
        return not (depth.waiting or depth.in_flight or depth.deferred)

    def starts(self) -> list[Event]:
        """Return the starts so far, in order."""
        return sorted((e for e in self.events() if e.kind is Kind.START), key=lambda event: event.at)

    def ran(self, key: str) -> list[str]:
        """Return the short name of the worker of each start of a key, in order."""
        return [event.worker.partition("@")[0] for event in self.starts() if event.key == key]

    def steps_back(self) -> list[Event]:
        """Return the starts with a lower token than an earlier start of their key."""
        seen: dict[str, int] = defaultdict(int)
        found = []
        for event in self.starts():
            if (event.epoch or 0) < seen[event.key]:
                found.append(event)
            seen[event.key] = max(seen[event.key], event.epoch or 0)
        return found

    def teardown(self) -> None:
        """End all workers and close all connections."""
        Sticky.of(self.app).wiring.lookup.close()
        Sticky.of(self.app).jobs.close()
        self.session.__exit__(None, None, None)
        self.store.close()
        self.placement_store.close()
        super().teardown()
