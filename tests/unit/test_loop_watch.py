"""When the watch over a loop reports it, with real threads: the loop is a thread of the test's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType

import pytest

from celery_sticky.membership.loop_watch import LOOKS, SILENT, LoopWatch
from celery_sticky.ownership.events import Event, LoopAnswers, LoopSilent
from celery_sticky.testing.waiting import wait_until

TIMEOUT = 0.5


class Loop:
    """A thread that answers when it is poked, but for what keeps it."""

    def __init__(self, *, tasks_run_here: bool) -> None:
        self.reports: list[Event] = []
        self.watch = LoopWatch(TIMEOUT, self.reports.append, runs_task if tasks_run_here else lambda _: False)
        self.lack = ""
        self.let_go = threading.Event()
        self.keeps: list[str] = []
        self._poked = threading.Event()
        self._running = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.watch.start()
        self.watch.ask = self._poked.set
        while self._running:
            self._poked.wait(0.01)
            if self.keeps:
                globals()[self.keeps.pop()](self.let_go)
            if self._poked.is_set():
                self._poked.clear()
                self.watch.answer(self.lack)

    def close(self) -> None:
        self._running = False
        self.let_go.set()
        self._thread.join()
        self.watch.stop()


def hang(until: threading.Event) -> None:
    until.wait()


def task_that_takes_long(until: threading.Event) -> None:
    until.wait()


def runs_task(frame: FrameType) -> bool:
    return frame.f_code is task_that_takes_long.__code__


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop(tasks_run_here=True)
    yield loop
    loop.close()


def poller(watch: LoopWatch, number: int) -> None:
    """Wait until the watch has looked so often."""
    for _ in range(number):
        before = watch._looked_at
        wait_until(partial(_has_looked_since, before, watch), 10, "it looks")


def _has_looked_since(before: float, watch: LoopWatch) -> bool:
    return watch._looked_at != before


def test_a_loop_that_hangs_is_reported_with_its_stack_and_so_is_its_return(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    poller(loop.watch, LOOKS + 5)
    assert loop.reports == []
    assert loop.watch.describe()["stalled"] is None
    loop.keeps.append("hang")
    wait_until(lambda: len(caplog.records) == 1, 10, "it is told")
    [report] = loop.reports
    assert isinstance(report, LoopSilent)
    assert report.stall.endswith(f" {SILENT}")
    assert float(report.stall.partition(" ")[0]) > 0
    assert "in hang\n" in caplog.records[0].getMessage()
    assert loop.watch.describe()["stalled"] == SILENT
    assert loop.watch.describe()["answer_age"] >= TIMEOUT / 2
    loop.let_go.set()
    wait_until(lambda: loop.reports[1:] == [LoopAnswers()], 10, "it answers again")
    assert loop.watch.describe()["stalled"] is None


def test_a_task_that_runs_in_the_loop_is_no_hang_however_long_it_takes(loop: Loop) -> None:
    loop.keeps.append("task_that_takes_long")
    poller(loop.watch, 3 * LOOKS)
    assert loop.reports == []
    loop.let_go.set()
    poller(loop.watch, LOOKS)
    assert loop.reports == []


def test_a_loop_that_turns_but_can_run_nothing_is_reported_with_what_it_lacks(loop: Loop) -> None:
    loop.lack = "no process"
    wait_until(lambda: loop.reports, 10, "it is reported")
    assert isinstance(loop.reports[0], LoopSilent)
    assert loop.reports[0].stall.endswith(" no process")
    loop.lack = ""
    wait_until(lambda: loop.reports[1:] == [LoopAnswers()], 10, "it can run tasks again")


def test_a_process_that_stood_still_as_a_whole_has_not_been_silent(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    poller(loop.watch, 2)
    loop.watch._looked_at -= 100 * TIMEOUT  # SIGSTOP, SIGCONT
    poller(loop.watch, 3)
    assert loop.reports == []


def test_a_loop_that_never_began_to_turn_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[Event] = []
    watch = LoopWatch(TIMEOUT, reports.append)
    watch.start()
    wait_until(lambda: caplog.records, 10, "it is told")
    watch.stop()
    assert len(reports) == 1
