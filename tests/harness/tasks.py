"""The tasks of the test app. Each records its runs in the history; add new tasks to `register`.

They are not shared: Celery would add a shared task to every app of the process, including the apps of later tests.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from celery import Celery, Task

from celery_sticky.testing.recorder import Recorder


def register(app: Celery, history: Path) -> None:
    """Define the test tasks on `app`."""
    recorder = Recorder(history)

    @app.task(name="record", shared=False, key="key", bind=True)
    def record(self: Task, key: str, n: int, seconds: float = 0.0) -> int:
        """Run for `seconds` under `key`."""
        with recorded(recorder, self, key, n):
            time.sleep(seconds)
        return n

    @app.task(name="plain", shared=False, bind=True)
    def plain(self: Task, n: int, seconds: float = 0.0) -> int:
        """Run for `seconds` without a key (the history calls its key `plain`)."""
        with recorded(recorder, self, "plain", n):
            time.sleep(seconds)
        return n

    @app.task(name="pid", shared=False)
    def pid() -> int:
        """Return the id of the process that runs the task."""
        return os.getpid()


def recorded(recorder: Recorder, task: Task, key: str, n: int) -> AbstractContextManager[None]:
    """Record the block as one run of `task`, with the slot, epoch and attempt from its message."""
    sticky = getattr(task.request, "sticky", None)
    return recorder.run(
        key,
        n,
        task.request.id,
        worker=str(task.request.hostname),
        keyspace=getattr(sticky, "keyspace", "default"),
        slot=getattr(sticky, "slot", None),
        epoch=getattr(sticky, "epoch", None),
        attempt=getattr(sticky, "attempt", None) or 0,
    )
