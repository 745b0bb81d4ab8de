"""One backend for all greenlets, where there is none."""

from __future__ import annotations

import threading

import pytest
from celery import Celery, Task

from celery_sticky.bootsteps.membership import share_disabled_backend


def nothing() -> None:
    """What the task does."""


def backends(task: Task) -> set[int]:
    """Return the identities of the backends that this thread and another one have; greenlets are as threads here."""
    found = [task.backend]
    other = threading.Thread(target=lambda: found.append(task.backend))
    other.start()
    other.join()
    return {id(backend) for backend in found}  # both are alive here, so that ids tell them apart


@pytest.mark.parametrize(("backend", "shared"), [(None, True), ("cache+memory://", False)])
def test_a_backend_that_does_nothing_is_shared_and_no_other(backend: str | None, shared: bool) -> None:
    app = Celery("test", backend=backend, set_as_current=False)
    task = app.task(nothing, name="task")
    assert len(backends(task)) == 2, "Celery makes one in each"
    share_disabled_backend(task)
    assert len(backends(task)) == (1 if shared else 2)
