"""Where a task without a process of its own may be interrupted."""

import sys
import threading
from collections.abc import Callable

import pytest

from celery_sticky.execution import interrupts
from celery_sticky.execution.interrupts import _may_raise

pytestmark = pytest.mark.unit


def code_of(module: str, file: str = "") -> Callable[[Callable[[], object]], object]:
    """Return a function that looks as if it stood in this module; it calls what it is given."""
    names: dict[str, object] = {"__name__": module}
    exec(compile("def call(inner): return inner()", file, "exec"), names)
    call: Callable[[Callable[[], object]], object] = names["call"]  # type: ignore[assignment]
    return call


@pytest.mark.parametrize(
    ("module", "may"),
    [
        ("shop.tasks", True),
        ("celery_sticky_like.tasks", True),
        ("logging.handlers", False),
        ("celery_sticky.jobs.client", False),
        ("celery_sticky.placement.lookup", False),
        ("celery_sticky.stores.redis.store", False),
        ("celery_sticky.testing.recorder", False),
    ],
)
def test_a_task_is_not_interrupted_in_code_that_takes_locks_of_others(module: str, may: bool) -> None:
    inside, done = threading.Event(), threading.Event()

    def body() -> None:
        guard = code_of(interrupts.__name__, interrupts.__file__)  # what is outside of it is Celery's
        guard(lambda: code_of("shop.tasks")(lambda: code_of(module)(wait)))

    def wait() -> None:
        inside.set()
        while not done.is_set():
            pass

    thread = threading.Thread(target=body)
    thread.start()
    try:
        assert inside.wait(10)
        found: list[bool] = []
        while not found:
            assert thread.ident is not None
            frame = sys._current_frames()[thread.ident]
            if frame.f_code.co_name == "wait":  # not within `is_set`, which stands in threading
                found.append(_may_raise(frame))
        assert found == [may]
    finally:
        done.set()
        thread.join()
