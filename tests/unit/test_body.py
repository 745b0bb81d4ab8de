"""The guard of what surrounds a task's body: it tells one that has ended from one that never began."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import VERSION, Celery, Task, states
from celery.app.trace import build_tracer
from celery.exceptions import Reject

from celery_sticky.execution.body import NotBegun, guard_traces, mark_body
from celery_sticky.execution.retry import DeferredRetry

# Celery warns of what was raised outside a body; here warnings are errors.
pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")]
REQUEST = {"id": "of-test-body", "sticky": {"key": "k"}, "delivery_info": {}}


class Own(Task):
    """A task with a `__call__` of its own, which runs something else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "something else"


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("guarded", backend="cache+memory://", set_as_current=False)
    runs: list[str] = []

    @made.task(name="works", shared=False)
    def works() -> int:
        runs.append("works")
        return 7

    @made.task(name="raises", shared=False)
    def raises() -> None:
        runs.append("raises")
        raise ValueError("no")

    @made.task(name="retries", shared=False)
    def retries() -> None:
        retry = DeferredRetry("again", exc=ValueError("no"))
        retry.sticky_body = b"the next try"
        raise retry

    @made.task(name="own", base=Own, shared=False)
    def own() -> None:
        runs.append("own")

    made.finalize()
    made.runs = runs
    for task in made.tasks.values():
        mark_body(task)
    yield made
    made.close()


@pytest.fixture
def away(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result backend is away."""

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(type(app.backend), "_store_result", fail)


def run(app: Any, name: str, **request: Any) -> Any:
    """Run a task as a pool does."""
    for task_name, task in app.tasks.items():
        task.__trace__ = build_tracer(task_name, task, app.loader, "w@here", app=app)
    guard_traces(app.tasks)
    return app.tasks[name].__trace__("of-test-body", (), {}, {**REQUEST, **request})


def test_where_nothing_fails_celery_has_its_say(app: Any) -> None:
    assert run(app, "works")[:2] == (7, None)
    assert run(app, "raises").info.state == states.FAILURE
    assert isinstance(run(app, "raises").retval.exception, ValueError)
    assert app.runs == ["works", "raises", "raises"]


@pytest.mark.usefixtures("away")
def test_a_body_that_returned_has_succeeded_whatever_became_of_its_result(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(app, "works")[:2] == (7, None)
    assert app.runs == ["works"]
    assert "task works[of-test-body] has ended, but Celery failed after it" in caplog.text


@pytest.mark.usefixtures("away")
def test_a_body_that_raised_has_failed_with_what_it_raised(app: Any) -> None:
    outcome = run(app, "raises")
    assert outcome.info.state == states.FAILURE and "ValueError" in str(outcome.retval.traceback)
    assert pickle.loads(pickle.dumps(outcome.retval))


@pytest.mark.usefixtures("away")
def test_a_retry_brings_its_next_try_along(app: Any) -> None:
    outcome = run(app, "retries")
    assert outcome.info.state == states.RETRY and outcome.info.retval.sticky_body == b"the next try"


def test_a_retry_is_one_though_celery_could_store_only_that_it_failed(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(app.backend), "mark_as_retry", lambda *_, **__: 1 / 0)
    assert run(app, "retries").info.state == states.RETRY


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("error", [ConnectionError("broker"), KeyError("x")])
def test_a_body_that_never_began_says_so(app: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(app.loader, "on_task_init", fail)
    with pytest.raises(NotBegun) as caught:
        run(app, "works")
    assert app.runs == []
    assert pickle.loads(pickle.dumps(caught.value)).text == caught.value.text


def test_nor_is_it_taken_for_a_failure_where_celery_could_store_one(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.loader, "on_task_init", lambda *_: int("x"))
    with pytest.raises(NotBegun) as caught:
        run(app, "works")
    assert caught.value.suspect and app.runs == []


@pytest.mark.usefixtures("away")
def test_a_task_runs_though_it_cannot_be_noted_that_it_has_started(app: Any) -> None:
    app.tasks["works"].sticky_tracks = True
    run(app, "works")
    assert app.runs == ["works"]


@pytest.mark.usefixtures("away")
def test_a_call_of_the_applications_own_counts_as_begun(app: Any) -> None:
    assert run(app, "own").info.state == states.FAILURE


@pytest.mark.skipif(VERSION < (5, 7), reason="earlier Celery takes it for a failure of the task")
def test_a_handler_that_rejects_is_heard(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: Any, **__: Any) -> None:
        raise Reject("no", requeue=True)

    monkeypatch.setattr(type(app.tasks["works"]), "on_success", reject)
    with pytest.raises(Reject):
        run(app, "works")


@pytest.mark.usefixtures("away")
def test_messages_without_a_key_are_left_to_celery(app: Any) -> None:
    with pytest.raises(ConnectionError):
        run(app, "works", sticky=None)


def test_marking_twice_is_marking_once(app: Any) -> None:
    body = app.tasks["works"].run
    mark_body(app.tasks["works"])
    assert app.tasks["works"].run is body


def store_states(app: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the states that are stored from now on, in order."""
    stored: list[str] = []

    def store(_task_id: str, _result: Any, state: str, **_: Any) -> None:
        stored.append(state)

    app.tasks["works"].sticky_tracks = True
    monkeypatch.setattr(app.tasks["works"].backend, "store_result", store)
    return stored


def test_that_a_task_has_started_is_stored_after_celery_has_looked_whether_it_had_succeeded(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the state STARTED went over that of a task which had succeeded, and it ran again."""
    order = store_states(app, monkeypatch)
    monkeypatch.setattr(app.loader, "on_task_init", lambda *_: order.append("init"))
    run(app, "works")
    assert order[:2] == ["init", states.STARTED]


@pytest.mark.parametrize("key", [{"key": "k"}, None])
def test_a_task_that_starts_is_noted_once_with_or_without_a_key(
    app: Any, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    stored = store_states(app, monkeypatch)
    run(app, "works", sticky=key)
    assert stored.count(states.STARTED) == 1
