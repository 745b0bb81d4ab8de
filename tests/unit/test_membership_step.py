"""The worker step: when it starts, and what it does to tasks."""

from __future__ import annotations

import threading

import pytest
from celery import Celery, Task
from celery.worker import WorkController

from celery_sticky.bootsteps.control import Control
from celery_sticky.bootsteps.membership import Membership
from celery_sticky.execution.forced import share_disabled_backend


def test_it_starts_when_everything_has_forked() -> None:
    """Guards: a process forked beside our threads inherits what they have locked; beat's hung on it."""
    blueprint = WorkController.Blueprint(steps=[Membership, Control])
    order = [step.__name__ for step in blueprint._finalize_steps(blueprint.claim_steps())]
    assert order.index("Membership") > max(order.index("Pool"), order.index("Beat"))


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
