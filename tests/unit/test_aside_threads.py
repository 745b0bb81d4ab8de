"""Threads for slow calls: used again, as many as there are calls at a time, and gone when they are closed."""

from __future__ import annotations

import threading

import pytest

from celery_sticky.platform import aside_threads
from celery_sticky.platform.aside_threads import AsideThreads, Call
from celery_sticky.testing.waiting import wait_until


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Real threads, which can be asked whether they have ended."""
    threads: list[threading.Thread] = []

    def start(target: Call) -> None:
        threads.append(threading.Thread(target=target, daemon=True))
        threads[-1].start()

    monkeypatch.setattr(aside_threads, "start_native_thread", start)
    return threads


def alive(threads: list[threading.Thread]) -> int:
    return sum(thread.is_alive() for thread in threads)


def test_a_thread_that_has_done_its_call_does_the_next(started: list[threading.Thread]) -> None:
    threads, done = AsideThreads(), list[int]()
    for number in range(10):
        threads.run(lambda number=number: done.append(number))  # type: ignore[misc]
        wait_until(lambda: len(threads._idle) == 1, 5, "the thread waits for more")
    assert done == list(range(10)) and len(started) == 1
    threads.close()
    wait_until(lambda: not alive(started), 5, "it ends")


def test_calls_at_a_time_do_not_wait_for_each_other_and_their_threads_end_after_a_close(
    started: list[threading.Thread],
) -> None:
    threads, together, go_on = AsideThreads(), threading.Barrier(4), threading.Event()

    def call() -> None:
        together.wait(5)
        go_on.wait(5)

    for _ in range(3):
        threads.run(call)
    together.wait(5)
    threads.close()
    assert alive(started) == 3
    go_on.set()
    wait_until(lambda: not alive(started), 5, "they end after their calls")
