"""A fleet for tests of faults: short leases, and queries for the ownership of slots."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery.utils.nodenames import gethostname
from kombu import Connection

from celery_sticky.drivers import open_store
from celery_sticky.errors import StickyError
from celery_sticky.keys import slot_for
from celery_sticky.ownership.view import View
from celery_sticky.stores import Store
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.slot_log import SlotEvent, SlotLog
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess
from harness import fault_tasks
from harness.app import AppConfig
from harness.fleet import Fleet

TTL, MARGIN, SETTLE = 3.0, 0.8, 0.3
TIMEOUT = TTL + MARGIN
"""Seconds until a silent member is evicted, or a lost document is written again."""
SLOTS = 48
CONF: Mapping[str, Any] = {
    "sticky_lease_ttl": TTL,
    "sticky_lease_margin": MARGIN,
    "sticky_settle": SETTLE,
    "sticky_slots": SLOTS,
    "task_ignore_result": True,
}


def node(name: str) -> str:
    """Return the full node name of the worker `name`."""
    return f"{name}@{gethostname()}"


class KeyedFleet(Fleet):
    """Workers with the tasks of `fault_tasks`. With `document`, the first ownership document exists from the start."""

    def __init__(self, guard: Guard, directory: Path, config: AppConfig, *, document: bool = True) -> None:
        super().__init__(guard, directory, config)
        fault_tasks.register(self.app, config.history)
        self._numbers: Counter[str] = Counter()
        self._slot_log = SlotLog(config.history)
        store_url = self.app.conf.sticky_store if "sticky_store" in config.conf else config.broker
        self._store_url: str = store_url
        self.store = self._open()
        if document:
            self.init()  # the first worker then need not wait for leases that others might hold
        self.observer = Observer(self._open())

    def _open(self) -> Store:
        options = self.app.conf.broker_transport_options
        return open_store(Connection(self._store_url, transport_options=options), "default")

    def worker(self, name: str = "w1", *, ready: bool = True, **options: Any) -> WorkerProcess:
        """Start a worker that also has `fault_tasks`; for the options see `Fleet.worker`."""
        options.setdefault("app", "harness.fault_app")
        return super().worker(name, ready=ready, **options)

    def workers_up(self, *names: str, **options: Any) -> list[WorkerProcess]:
        """Start workers at the same time and wait until they share the slots."""
        started = [self.worker(name, ready=False, **options) for name in names]
        for worker in started:
            worker.wait_ready()
        self.wait_members(*self.workers)
        return started

    def environ_with(self, *, broker: str | None = None, **settings: Any) -> dict[str, str]:
        """Return the environment of a worker whose configuration differs from the fleet's."""
        conf = {**self.config.conf, **settings}
        return replace(self.config, broker=broker or self.config.broker, conf=conf).environ()

    def publish(self, key: str, seconds: float = 0.0, **options: Any) -> int:
        """Send the next task of `key`; return its number."""
        n = self._numbers[key]
        self._numbers[key] += 1
        self.send(key, n, seconds, **options)
        return n

    def publish_many(self, tasks: int, keys: int, seconds: float = 0.0) -> None:
        """Send tasks to this many keys in turn."""
        with self.app.producer_or_acquire() as producer:
            for i in range(tasks):
                self.publish(f"k{i % keys}", seconds, producer=producer)

    def call(self, task: str, key: str, *args: Any, **options: Any) -> int:
        """Send a task of `fault_tasks` as the next one of `key`; return its number."""
        n = self._numbers[key]
        self._numbers[key] += 1
        result = self.app.tasks[task].apply_async((key, n, *args), **options)
        self.history.published(key, n, result.id)
        return n

    def ended(self) -> int:
        """Return how many runs have ended, without parsing the whole history."""
        path = self.config.history
        return path.read_bytes().count(b'"kind":"end"') if path.exists() else 0

    def wait_ended(self, runs: int, timeout: float = 60.0) -> None:
        """Wait until this many runs have ended."""
        wait_until(lambda: self.ended() >= runs, timeout, f"{runs} runs end\n{self}", 0.1)

    # -- ownership -----------------------------------------------------------------------------

    def view(self) -> View | None:
        """Return the current ownership document."""
        return self.store.read().view

    def wait_view(self, predicate: Any, timeout: float = 30.0, message: str = "the view is as expected") -> View:
        """Wait for a view that satisfies `predicate`, and return it."""

        def look() -> View | None:
            with suppress(StickyError):
                view = self.view()
                return view if view is not None and predicate(view) else None
            return None

        try:
            view = wait_until(look, timeout, message, 0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.view()}\n{self}") from None
        assert view is not None
        return view

    def wait_members(self, *names: str, timeout: float = 30.0) -> View:
        """Wait until exactly these workers share all slots and each has opened its own."""
        wanted = {node(name) for name in names}

        def shared(view: View) -> bool:
            return set(view.members) == wanted and view.settled and not view.unowned and self.all_open(view)

        return self.wait_view(shared, timeout, f"{sorted(wanted)} share the slots")

    def all_open(self, view: View) -> bool:
        """Return whether every owner has opened its slots, according to the records of the workers."""
        held = self.held()
        return all(owner is None or slot in held.get(owner, ()) for slot, owner in enumerate(view.owner))

    def slot_events(self) -> list[SlotEvent]:
        """Return the recorded gains and losses of slots."""
        return self._slot_log.events()

    def held(self) -> dict[str, set[int]]:
        """Return the slots that each worker has recorded as open. The record of a killed worker stays as it was."""
        held: dict[str, set[int]] = {}
        for event in self.slot_events():
            of_worker = held.setdefault(event.worker, set())
            if event.what == "gained":
                of_worker.add(event.slot)
            else:
                of_worker.discard(event.slot)
        return held

    def keys_of(self, view: View, name: str, *, count: int = 1) -> list[str]:
        """Return `count` keys in different slots that the worker `name` owns."""
        found: dict[int, str] = {}
        for i in range(10_000):
            slot = self.slot_of(f"key{i}")
            if view.owner[slot] == node(name):
                found.setdefault(slot, f"key{i}")
            if len(found) == count:
                return list(found.values())
        raise AssertionError(f"{name} owns no {count} slots")

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return slot_for(key, int(self.app.conf.sticky_slots))

    def teardown(self) -> None:
        """Leave no process, thread or connection behind."""
        super().teardown()
        self.observer.close()
        self.store.close()


class Observer:
    """Records each version of the view that it sees, with the time (CLOCK_MONOTONIC, in nanoseconds)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.views: list[tuple[int, View]] = []
        self._running = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def since(self, at: int) -> list[View]:
        """Return the views seen after `at`, and the one before."""
        before = [view for seen, view in self.views if seen < at][-1:]
        return before + [view for seen, view in self.views if seen >= at]

    def close(self) -> None:
        """Stop observing."""
        self._running = False
        self._store.wake()
        self._thread.join(timeout=10)
        self._store.close()

    def _run(self) -> None:
        while self._running:
            try:
                self._look()
                self._store.watch(0.1)
            except StickyError:
                time.sleep(0.05)  # until the store answers again

    def _look(self) -> None:
        view = self._store.read().view
        if view is not None and (not self.views or self.views[-1][1] != view):
            self.views.append((time.monotonic_ns(), view))
