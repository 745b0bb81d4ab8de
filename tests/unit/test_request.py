from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context

from celery_sticky.execution.outcome import Said
from celery_sticky.execution.request import _acks_on_timeout, _letting_go, _name_custom_headers, sticky_request_class

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "fields",
    [
        {"lang": "py", "task": "t", "id": "1", "sticky": {"key": "k"}, "tenant": "x", "none": None},
        {"id": "1", "timelimit": [3, 2], "headers": None, "argsrepr": "()", "own": 1},
        {"id": "1", "headers": {"own": 2}, "other": 3},
        {"id": "1"},
    ],
)
def test_a_task_sees_the_headers_that_celery_would_show_it(fields: dict[str, object]) -> None:
    ours = dict(fields)
    _name_custom_headers(ours)
    seen, stock = Context(ours), Context(dict(fields))
    assert (seen.headers or None) == stock.headers
    assert vars(seen) | {"headers": stock.headers} == vars(stock)


def test_celery_does_not_look_for_headers_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "sticky", None, raising=False)  # as it is where celery-sticky is at work
    fields: dict[str, object] = {"id": "1", "root_id": "1", "sticky": {"key": "k"}}
    _name_custom_headers(fields)
    monkeypatch.setattr(Context, "_get_custom_headers", None)
    assert Context(fields).headers == {}


def test_a_task_that_had_succeeded_before_is_not_taken_for_a_killed_one() -> None:
    """`worker_deduplicate_successful_tasks`: Celery does not run it again, and says so with a number."""
    said: list[Any] = []
    ended = _letting_go(lambda _, outcome, **__: said.append(outcome))
    run = SimpleNamespace(said=Said(), let_go=lambda: said.append("let go"))
    request = SimpleNamespace(_run=run, acknowledge=lambda: said.append("acknowledged"))
    ended(request, (0, None, None))
    assert said == [(0, None, None), "acknowledged", "let go"]


def test_what_the_pool_has_accepted_has_begun() -> None:
    """Guards: until then nothing of its key is passed on, and afterwards it must be."""

    class Stock:
        def on_accepted(self, pid: int, time_accepted: float) -> None:
            assert run.accepting and run.entry.began

    run = SimpleNamespace(
        said=Said(),
        accepting=False,
        entry=SimpleNamespace(began=False, run=None),
        context=SimpleNamespace(has_processes=False),
    )
    request: Any = object.__new__(sticky_request_class(Stock))
    request._run = run
    request.on_accepted(7, 0.0)
    assert run.said.began and run.entry.began and not run.accepting and run.pid == 7


@pytest.mark.parametrize("acks", [True, False])
def test_celery_5_5_has_one_setting_for_failures_and_timeouts(acks: bool) -> None:
    assert _acks_on_timeout(SimpleNamespace(acks_on_failure_or_timeout=acks)) is acks
    newer = SimpleNamespace(acks_on_timeout=acks, acks_on_failure_or_timeout=not acks)
    assert _acks_on_timeout(newer) is acks
    unset = SimpleNamespace(acks_on_timeout=None, acks_on_failure_or_timeout=acks)
    assert _acks_on_timeout(unset) is acks
