"""The asyncio tasks of runs: a cancellation that code loses is repeated; one that is handled is not."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from celery_sticky.jobs.host import tasks as tasks_module
from celery_sticky.jobs.host.tasks import RUN, RunTasks, WatchedCoroutine, context_of
from celery_sticky.jobs.marks import Marks

Scenario = Callable[[], Awaitable[None]]
tasks = RunTasks(Marks.unread(0))
"""Of the loop of the test."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "AGAIN", 0.02)
    tasks.__init__(Marks.unread(0))  # type: ignore[misc]


def in_loop(scenario: Scenario) -> Callable[[], None]:
    @functools.wraps(scenario)
    def test() -> None:
        async def play() -> None:
            asyncio.get_running_loop().set_task_factory(tasks.create)
            await scenario()

        asyncio.run(play())

    return test


def begin(coroutine: Coroutine[Any, Any, Any], run: int = 7) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine, context=context_of(run))


async def stop(task: asyncio.Task[Any], run: int = 7) -> None:
    """Cancel it as the host does, and wait for its end."""
    await asyncio.sleep(0.01)
    tasks.cancel(run, task)
    await asyncio.wait([task], timeout=10)
    assert task.done()


async def swallow(times: int, counted: list[int]) -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            counted.append(1)
            if len(counted) > times:
                raise


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_coroutine_that_swallows_cancellations_is_cancelled_again_until_it_ends(times: int) -> None:
    @in_loop
    async def play() -> None:
        counted: list[int] = []
        await stop(begin(swallow(times, counted)))
        assert len(counted) == times + 1

    play()


@in_loop
async def test_a_cancellation_that_is_lost_together_with_a_result_is_repeated() -> None:
    """Guards: `asyncio.wait_for` of Python 3.11 does this."""
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    taken: list[str] = []

    async def job() -> None:
        waiting = inner
        while True:
            await asyncio.wait_for(waiting, 3600)
            taken.append("result")
            waiting = asyncio.get_running_loop().create_future()

    task = begin(job())
    await asyncio.sleep(0.01)
    inner.set_result(None)
    await stop_now(task)
    assert taken in ([], ["result"])


async def stop_now(task: asyncio.Task[Any]) -> None:
    tasks.cancel(7, task)
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


@in_loop
async def test_what_handles_its_cancellation_is_left_alone_however_long_that_takes() -> None:
    done: list[str] = []

    async def job() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            done.append("except")
            raise
        finally:
            await asyncio.sleep(0.1)
            done.append("finally")

    await stop(begin(job()))
    assert done == ["except", "finally"]


@pytest.mark.parametrize("how", ["group", "wait_for"])
def test_tasks_that_a_job_has_created_are_cancelled_again_too_and_those_that_clean_up_are_not(how: str) -> None:
    @in_loop
    async def play() -> None:
        counted: list[int] = []
        cleaned: list[str] = []

        async def clean_up() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.15)
                cleaned.append("done")

        async def job() -> None:
            if how == "wait_for":
                await asyncio.wait_for(swallow(1, counted), 3600)
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(swallow(1, counted))
                group.create_task(clean_up())

        await stop(begin(job()))
        assert len(counted) == 2 and cleaned == ["done"] * (how == "group")

    play()


@in_loop
async def test_a_task_that_lost_a_cancellation_before_the_stop_is_not_cancelled_for_that() -> None:
    counted: list[int] = []
    ended: list[str] = []

    async def job() -> None:
        child = asyncio.get_running_loop().create_task(swallow(1, counted))
        await asyncio.sleep(0)
        child.cancel()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.1)  # the child is needed meanwhile
            ended.append("alive" if not child.done() else "gone")
            child.cancel()

    await stop(begin(job()))
    assert ended == ["alive"]


@in_loop
async def test_only_tasks_of_runs_are_watched_and_they_look_like_others() -> None:
    async def idle() -> int:
        await asyncio.sleep(0)
        return RUN.get()

    own, other = begin(idle()), asyncio.get_running_loop().create_task(idle())
    coroutine: Any = own.get_coro()
    assert isinstance(coroutine, WatchedCoroutine) and not isinstance(other.get_coro(), WatchedCoroutine)
    assert asyncio.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
    assert "idle" in repr(own) and coroutine.__qualname__.endswith("idle")
    assert (await own, await other) == (7, 0)
