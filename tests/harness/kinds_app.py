"""The app of workers that run tasks of every kind. Only worker processes import it.

This keeps its shared task out of the apps of the tests, and other workers out of the keyspace `orders`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from celery import Task, shared_task

from celery_sticky import Sticky, signals
from harness import kind_tasks
from harness.app import make_worker_app
from harness.kind_tasks import told

logger = logging.getLogger("celery_sticky.harness")
app = make_worker_app()
kind_tasks.register(app, Path(os.environ["STICKY_APP_HISTORY"]))


@shared_task(name="shared", key="key", bind=True)
def shared(self: Task, key: str, n: int = 0) -> dict[str, Any]:
    """Return what the task can see of its request."""
    return told(self)


def _write_down(what: str) -> Any:
    def receiver(sender: str, keyspace: str, slots: frozenset[int], **_: Any) -> None:
        lease = Sticky.of(app).wiring.lease
        owned = [slot for slot in slots if lease is not None and lease.owns(keyspace, slot)]
        logger.warning("%s: %s %s %s owned %s.", sender, what, keyspace, sorted(slots), sorted(owned))

    return receiver


_on_gained, _on_lost = _write_down("gained"), _write_down("lost")
signals.slots_gained.connect(_on_gained)
signals.slots_lost.connect(_on_lost)
