"""What the step answers to the loop watch, and how much room a pool has."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest
from celery.worker import state

from celery_sticky.bootsteps.loop_check import NO_PLACE, NO_PROCESS, NOT_CONNECTED, LoopCheck, pool_lacks
from celery_sticky.execution.places import free_places, grows, places


class Request(Some):
    """One that Celery can keep in its sets."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def pool(*, green: bool = False, num_processes: int | None = 2, **parts: Any) -> Any:
    return Some(is_green=green, num_processes=num_processes, **parts)


def greenlets(size: int, counter: int) -> Any:
    return Some(size=size, _semaphore=Some(counter=counter))


def test_without_a_connection_of_celery_the_answer_says_so() -> None:
    answers: list[str] = []
    part = Some(loop_watch=Some(answer=answers.append, ask=lambda: None))
    check = LoopCheck(Some(controller=Some(sticky=part), app=None))
    check._answer()
    check.start(Some(pool=pool()))
    check._answer()
    check.stop(None)
    check._answer()
    assert answers == [NOT_CONNECTED, "", NOT_CONNECTED]
    check._reader.close()
    check._writer.close()


def test_what_was_taken_back_leaves_celerys_books_once_the_loop_answers() -> None:
    """One that stayed in them would be shown by `inspect reserved` for ever."""
    freed: list[str] = []
    part = Some(loop_watch=Some(answer=lambda _: None, ask=lambda: None))
    check = LoopCheck(Some(controller=Some(sticky=part), app=None))
    check.start(Some(pool=pool(), controller=Some(_quick_release=lambda: freed.append("a place"))))
    request = Request(id="taken-back", name="t")
    state.task_reserved(request)
    check._owed.append(request)
    check._answer()
    assert "taken-back" not in state.requests and freed == ["a place"]
    check._reader.close()
    check._writer.close()


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        (pool(_pool=Some(_all_inqueues={5})), ""),
        (pool(_pool=Some(_all_inqueues=set())), NO_PROCESS),
        (pool(), ""),
        (pool(num_processes=0), NO_PLACE),
        (pool(green=True, num_processes=0, _pool=greenlets(2, 0)), ""),  # Celery up to 5.6: none runs at the moment
        (pool(green=True, _pool=greenlets(0, 0)), NO_PLACE),
    ],
)
def test_a_pool_that_could_run_a_task_lacks_nothing(given: Any, lacks: str) -> None:
    assert pool_lacks(given) == lacks


def test_the_size_of_a_pool_of_greenlets_is_not_how_many_run() -> None:
    assert places(pool(green=True, num_processes=1, _pool=greenlets(8, 7))) == 8
    assert places(pool(num_processes=3)) == 3


def test_only_what_a_pool_can_begin_is_handed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_places(pool(green=True, _pool=greenlets(8, 3)), 8) == 3
    assert free_places(pool(green=True, _pool=greenlets(8, -1)), 8) == 0
    monkeypatch.setattr(state, "active_requests", {1, 2})
    threads = pool(num_processes=4, executor=Some(_work_queue=Some(qsize=lambda: 1)))
    assert free_places(threads, 4) == 1
    monkeypatch.setattr(state, "active_requests", {1, 2, 3})
    assert free_places(threads, 4) == 0
    threads.executor._work_queue.qsize = lambda: 0
    monkeypatch.setattr(state, "active_requests", {1, 2, 3, 4, 5})
    assert free_places(threads, 4) == 1, "never none while nobody waits there"
    assert free_places(pool(), 4) > 1000


@pytest.mark.parametrize(("most", "answer"), [(4, ""), (None, NO_PROCESS)])
def test_a_pool_that_is_empty_until_there_is_work_lacks_nothing(most: int | None, answer: str) -> None:
    """`--autoscale=4` starts with no process, and ends them all where there is nothing to do."""
    answers: list[str] = []
    part = Some(loop_watch=Some(answer=answers.append, ask=lambda: None))
    check = LoopCheck(Some(controller=Some(sticky=part), app=None))
    empty = pool(num_processes=0, _pool=Some(_all_inqueues=set()))
    consumer = Some(pool=empty, controller=Some(max_concurrency=most))
    check.start(consumer)
    check._answer()
    assert answers == [answer] and grows(consumer) == (most is not None)
    check._reader.close()
    check._writer.close()
