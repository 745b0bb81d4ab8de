"""Task options that celery-sticky enforces in a worker, regardless of the tasks' own settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.backends.base import DisabledBackend

from celery_sticky.execution.body import mark_body
from celery_sticky.execution.retry import fence_retry


def force(tasks: Any, keyed: Iterable[str]) -> None:
    """Make celery-sticky settle the messages of keyed tasks, and their retries."""
    for name in keyed:
        _keep_when_lost(tasks[name])
        share_disabled_backend(tasks[name])
    for task in tasks.values():
        mark_body(task)
        fence_retry(task)  # every task: a message may bring its own key to a task without one


def share_disabled_backend(task: Any) -> None:
    """Without a result backend, save each run the search for its thread's backend.

    Celery creates one in each greenlet, which takes a third of a no-op task's time.
    """
    backend = task.app.backend
    if isinstance(backend, DisabledBackend):
        task.backend = backend


def _keep_when_lost(task: Any) -> None:
    """Settle after the run, and keep the message when the process is lost, regardless of the task's options."""
    task.acks_late = True
    task.reject_on_worker_lost = True
    task.retry_on_worker_lost = False  # would publish a second message of the same task
