"""The app of a worker whose event dispatcher or pool raises. `STICKY_BREAKS` selects which."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from celery.concurrency.base import BasePool
from celery.events import EventDispatcher

from harness import kind_tasks
from harness.app import make_worker_app

TIMES = 12
"""How many times the pool refuses a task, or `task-received` cannot be sent. Other task events always fail."""

app = make_worker_app()
kind_tasks.register(app, Path(os.environ["STICKY_APP_HISTORY"]))
raised: Counter[str] = Counter()
send, apply_async = EventDispatcher.send, BasePool.apply_async


def send_or_raise(dispatcher: Any, kind: str, *args: Any, **fields: Any) -> Any:
    """Raise for events of tasks; send all other events."""
    if kind.startswith("task-") and (kind != "task-received" or raised[kind] < TIMES):
        raised[kind] += 1
        raise ConnectionError("events cannot be sent")
    return send(dispatcher, kind, *args, **fields)


def apply_or_raise(pool: Any, *args: Any, **options: Any) -> Any:
    """Refuse the first `TIMES` tasks."""
    if raised["apply"] < TIMES:
        raised["apply"] += 1
        raise OSError("the pool takes nothing")
    return apply_async(pool, *args, **options)


if os.environ["STICKY_BREAKS"] == "events":
    EventDispatcher.send = send_or_raise
else:
    BasePool.apply_async = apply_or_raise
