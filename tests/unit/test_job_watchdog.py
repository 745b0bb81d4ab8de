"""The watchdog of a job host: what it says of a loop that does not turn, and which run it names."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_sticky.jobs.host import watchdog as watchdog_module
from celery_sticky.jobs.host.tasks import RunTasks, context_of
from celery_sticky.jobs.host.watchdog import Watchdog
from celery_sticky.jobs.marks import Marks
from celery_sticky.jobs.wire import Blocked, decode

Block = Callable[[], None]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Both ends of the pipe to the worker."""
    monkeypatch.setattr(watchdog_module, "TICK", 0.02)
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def said(report: tuple[int, int]) -> list[Blocked]:
    os.set_blocking(report[0], False)
    try:
        lines = os.read(report[0], 1 << 16).splitlines()
    except BlockingIOError:
        return []
    return [message for line in lines if isinstance(message := decode(line), Blocked)]


def watched(report: tuple[int, int], play: Callable[[Block], Any]) -> list[Blocked]:
    """Have something block a watched loop until the watchdog says so; return what it has said."""
    found: list[Blocked] = []

    def block_the_loop() -> None:
        deadline = time.monotonic() + 10
        while not found and time.monotonic() < deadline:
            time.sleep(0.01)
            found.extend(said(report))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(RunTasks(Marks.unread(0)).create)
        watchdog = Watchdog(report[1], lambda run: ("sync", f"k{run}"), warn_after=0.1)
        watchdog.start(loop)
        await play(block_the_loop)
        await asyncio.sleep(0.1)
        watchdog.stop()

    asyncio.run(main())
    return found


async def in_its_task(block: Block) -> None:
    async def job() -> None:
        await asyncio.sleep(0.01)
        block()

    await asyncio.get_running_loop().create_task(job(), context=context_of(7))


async def in_a_task_of_its(block: Block) -> None:
    async def child() -> None:
        await asyncio.sleep(0.01)
        block()

    async def job() -> None:
        await asyncio.gather(child(), asyncio.sleep(0.02))

    await asyncio.get_running_loop().create_task(job(), context=context_of(7))


async def in_a_callback_of_its(block: Block) -> None:
    done = asyncio.Event()

    def callback() -> None:
        block()
        done.set()

    async def job() -> None:
        asyncio.get_running_loop().call_later(0.01, callback)
        await done.wait()

    await asyncio.get_running_loop().create_task(job(), context=context_of(7))


@pytest.mark.parametrize("play", [in_its_task, in_a_task_of_its, in_a_callback_of_its])
def test_it_names_the_run_whose_code_blocks_the_loop_and_shows_where(
    play: Callable[[Block], Any], report: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "celery_sticky.jobs")
    (blocked,) = watched(report, play)
    assert (blocked.ref, blocked.name, blocked.key) == (7, "sync", "k7") and blocked.seconds >= 0.1
    warning, again = caplog.records
    assert "job 'sync' of key 'k7' has blocked the event loop" in warning.getMessage()
    assert "in block_the_loop" in warning.getMessage(), "its stack"
    assert "turns again" in again.getMessage()


def test_code_of_no_run_is_nobodys(report: tuple[int, int]) -> None:
    async def play(block: Block) -> None:
        block()

    (blocked,) = watched(report, play)
    assert blocked.ref == 0 and "code of no job" in str(blocked)


def test_of_a_loop_that_turns_it_says_nothing(report: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    async def play(block: Block) -> None:
        for _ in range(20):
            await asyncio.sleep(0.02)

    watched(report, play)
    assert said(report) == [] and not caplog.records


def test_the_time_for_which_the_whole_process_stood_still_does_not_count(
    report: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watchdog = Watchdog(report[1], lambda run: ("sync", "k"), warn_after=0.1)
    now[0] += 3600
    watchdog._look()
    assert said(report) == []
    for _ in range(10):
        now[0] += 0.02
        watchdog._look()
    assert said(report)
