"""The answer to those who wait for a task whose message was buried unstarted."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.result import AsyncResult

from celery_sticky.envelope import Envelope
from celery_sticky.errors import NotPinned
from celery_sticky.execution.refusals import Refusals
from celery_sticky.execution.results import Results


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", backend="cache+memory://", set_as_current=False)

    @made.task(name="push", shared=False)
    def push(client: str) -> None: ...

    yield made
    made.close()


def envelope(task_id: str, body: Any = None, *, task: str = "push") -> Envelope:
    args = [["ada"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    headers = {"task": task, "id": task_id, "lang": "py", "retries": 0, "ignore_result": False}
    return Envelope(headers, {}, "application/json", "utf-8", body or json.dumps(args).encode())


def test_the_task_fails_with_what_is_said_and_the_end_waits_for_a_slow_backend(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    store = type(app.backend).store_result

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return store(*args, **kwargs)

    @signals.task_failure.connect(sender=app.tasks["push"])
    def hear(task_id: str, exception: Exception, args: Any, einfo: Any, **_: Any) -> None:
        heard.append((task_id, str(exception), list(args), einfo.exc_info[0]))

    monkeypatch.setattr(type(app.backend), "store_result", slow)
    results = Results()
    refusals = Refusals(app, "w@here", results)
    refusals.tell([(envelope("1"), NotPinned("by nobody"))])
    refusals.tell([(envelope("2"), NotPinned("by nobody"))])
    results.finish(10.0)
    for task_id in "12":
        with pytest.raises(NotPinned, match="by nobody"):
            AsyncResult(task_id, app=app).get(timeout=1)
    assert heard == [(task_id, "by nobody", ["ada"], NotPinned) for task_id in "12"]


def test_what_is_no_task_of_this_worker_fails_too(app: Any) -> None:
    results = Results()
    refusals = Refusals(app, "w@here", results)
    found = [envelope("damaged", b"{"), envelope("unknown", task="of another worker")]
    refusals.tell([(one, NotPinned("by nobody")) for one in found])
    results.finish(10.0)
    assert [AsyncResult(one.task_id, app=app).state for one in found] == ["FAILURE"] * 2


def test_a_result_that_cannot_be_written_keeps_nobody_else_waiting(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = type(app.backend).store_result

    def failing(self: Any, task_id: str, *args: Any, **kwargs: Any) -> Any:
        if task_id == "bad":
            raise OSError("no space")
        return store(self, task_id, *args, **kwargs)

    monkeypatch.setattr(type(app.backend), "store_result", failing)
    results = Results()
    refusals = Refusals(app, "w@here", results)
    refusals.tell([(envelope(one), NotPinned("by nobody")) for one in ("bad", "good")])
    results.finish(10.0)
    assert [AsyncResult(one, app=app).state for one in ("bad", "good")] == ["PENDING", "FAILURE"]
    assert "the result of task bad could not be written" in caplog.text
