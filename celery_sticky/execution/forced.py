"""What tasks are made to do in a worker that takes part, whatever they say of themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.backends.base import DisabledBackend

from celery_sticky.execution.body import mark_body
from celery_sticky.execution.retry import fence_retry


def force(tasks: Any, keyed: Iterable[str]) -> None:
    """See to it that messages of keyed tasks are settled by us, and their retries too."""
    for name in keyed:
        _keep_when_lost(tasks[name])
        share_disabled_backend(tasks[name])
    for task in tasks.values():
        mark_body(task)
        fence_retry(task)  # all: a message may bring a key of its own to a task without one


def share_disabled_backend(task: Any) -> None:
    """Spare each run the search for its thread's backend where there is none.

    Celery makes one in each greenlet, which is a third of a no-op task.
    """
    backend = task.app.backend
    if isinstance(backend, DisabledBackend):
        task.backend = backend


def _keep_when_lost(task: Any) -> None:
    """Settle after the run, and keep the message when the process is lost, whatever the task says."""
    task.acks_late = True
    task.reject_on_worker_lost = True
    task.retry_on_worker_lost = False  # would publish a second message of the same task
