"""A fleet whose app and workers have tasks of every kind, and queries for its slot queues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from celery.result import AsyncResult

from celery_sticky import Sticky
from celery_sticky.drivers import open_queues
from celery_sticky.queues import Depth, SlotQueues
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess
from harness import kind_tasks
from harness.app import AppConfig
from harness.fleet import Fleet

SLOTS = 16
CONF = {"sticky_slots": SLOTS, "sticky_lease_ttl": 3.0, "sticky_lease_margin": 0.8, "sticky_settle": 0.3}


class KindsFleet(Fleet):
    """A fleet of `harness.kinds_app`. Its first document is written when it is created."""

    def __init__(self, guard: Guard, directory: Path, broker: str, conf: dict[str, Any] | None = None) -> None:
        super().__init__(guard, directory, AppConfig(broker, directory / "history.jsonl", broker, CONF | (conf or {})))
        kind_tasks.register(self.app, self.config.history)
        self.init()

    def worker(self, name: str = "w1", **options: Any) -> WorkerProcess:
        """Start a worker of `harness.kinds_app`."""
        return super().worker(name, **{"app": "harness.kinds_app", **options})

    def call(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        """Send a task."""
        return self.app.tasks[task].apply_async(args, **options)

    def ask(self, name: str, command: str, **arguments: Any) -> Any:
        """Send a worker a remote control command and return its answer."""
        node = f"{name}@{os.uname().nodename}"
        broadcast = partial(self.app.control.broadcast, command, arguments, destination=[node], reply=True, limit=1)
        # A worker that has just started may not listen yet and would miss the command, so it is repeated.
        reply = wait_until(lambda: broadcast(timeout=1), 10, f"{node} answers {command!r}\n{self}")
        return reply[0][node]

    def runs(self, key: str) -> list[int]:
        """Return the numbers of the tasks of a key, in the order in which they started."""
        return [event.n for event in self.starts(key)]

    def starts(self, key: str) -> list[Event]:
        """Return the starts of a key's tasks."""
        return [event for event in self.events() if event.kind is Kind.START and event.key == key]

    def ends(self, key: str) -> list[Event]:
        """Return the ends of a key's tasks."""
        return [event for event in self.events() if event.kind is Kind.END and event.key == key]

    @contextmanager
    def queues(self) -> Iterator[SlotQueues]:
        """Open the slot queues for the block."""
        queues = open_queues(self.app.connection_for_read(), prefix="sticky", socket_timeout=5.0)
        try:
            yield queues
        finally:
            queues.close()

    def depth(self, key: str) -> Depth:
        """Return the depth of the queue of a key's slot."""
        slot = Sticky.of(self.app).slot_for(key)
        with self.queues() as queues:
            return queues.depths([("default", slot)])["default", slot]

    def dead(self) -> list[dict[str, Any]]:
        """Return the information recorded about each buried message."""
        with self.queues() as queues:
            return [json.loads(one.info) for one in queues.dead("default")]

    def wait_buried(self, task_id: str) -> dict[str, Any]:
        """Wait until the message of a task is buried, and return the information recorded about it."""
        found = wait_until(lambda: self.buried(task_id), 30, f"{task_id} is buried\n{self}", 0.05)
        assert found is not None
        return found

    def buried(self, task_id: str) -> dict[str, Any] | None:
        """Return the information recorded about a task's buried message, or None if there is no such message."""
        return next(filter(partial(_is_of, task_id), self.dead()), None)


def _is_of(task_id: str, info: dict[str, Any]) -> bool:
    return bool(info["id"] == task_id)
