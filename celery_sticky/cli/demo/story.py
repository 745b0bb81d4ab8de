"""The course of the demo: orders are sent all the time, one worker is killed, another joins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_sticky.cli.demo.stage import PRESET, Scene, Stage
from celery_sticky.cli.verify.site import node
from celery_sticky.errors import StickyError
from celery_sticky.ownership.view import View

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india")
TICK = 0.05
DRAW_EVERY = 0.25
TIMEOUT = 30.0
"""Seconds any single step may take before the demo gives up."""
LIMIT = round(PRESET.eviction_timeout + 0.5, 1)
"""Seconds within which a dead worker's slots must have new owners."""
BUSY = 0.4
"""Share of the workers' capacity that the orders use."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of workers, with the owners before and after it."""

    worker: str
    at: int
    """CLOCK_MONOTONIC nanoseconds."""
    seconds: float
    """Seconds until every slot was at its target."""
    before: View
    after: View


@dataclass(frozen=True, slots=True)
class Course:
    """The changes of workers during the demo."""

    killed: Change
    joined: Change


class Story:
    """Runs the demo step by step."""

    def __init__(self, stage: Stage, workers: int, seconds: float, draw: Callable[[Scene], None]) -> None:
        self._cluster, self._stage, self._draw = stage.cluster, stage, draw
        self._names, self._newcomer = NAMES[:workers], NAMES[workers]
        self._seconds = seconds
        self._rate = stage.total / seconds
        self._task_seconds = min(0.3, BUSY * workers * PRESET.concurrency / self._rate)
        self._since = 0.0
        self._drawn = float("-inf")

    def play(self) -> Course:
        """Run the demo and return the changes of workers.

        Raises:
            StickyError: a step timed out, or a worker ended by itself.
        """
        stage = self._stage
        for name in self._names:
            self._cluster.start(name)
            stage.workers[name] = "starting"
        stage.tell(f"{len(self._names)} workers are starting, with {PRESET.concurrency} processes each")
        self._wait("the workers own all slots", lambda: stage.observer.settled(self._names))
        self._working(*self._names)
        stage.tell("every slot has an owner; orders are sent from now on")
        self._since = time.monotonic()
        self._pass(self._seconds * 0.25)
        killed = self._kill(self._names[1])
        self._pass(max(self._seconds * 0.1, self._seconds * 0.6 - (time.monotonic() - self._since)))
        joined = self._join(self._newcomer)
        self._pass(self._since + self._seconds - time.monotonic())
        stage.publish(stage.total, self._task_seconds)
        stage.tell(f"all {stage.total} orders are sent; the workers finish the rest")
        self._wait("every order is charged", lambda: stage.finished() == stage.total)
        stage.tell("every order is charged; the workers are asked to stop (SIGTERM)")
        self._working(*(name for name, does in stage.workers.items() if does == "working"), does="stopping")
        self._look()
        self._cluster.stop_workers(TIMEOUT)
        self._working(*(name for name, does in stage.workers.items() if does == "stopping"), does="stopped")
        self._look()
        return Course(killed, joined)

    def _kill(self, name: str) -> Change:
        stage = self._stage
        before = stage.view()
        began = time.monotonic()
        self._cluster.retire(name).kill()
        at = time.monotonic_ns()
        stage.workers[name] = "killed"
        slots = len(before.owned_by(node(name)))
        stage.tell(f"{name} is killed (SIGKILL): its {slots} slots wait until its lease expires")
        rest = [other for other in self._names if other != name]
        after = self._wait(f"the slots of {name} have new owners", lambda: stage.observer.settled(rest))
        took = time.monotonic() - began
        stage.tell(f"the slots of {name} have new owners, {took:.1f} s after its death")
        return Change(name, at, took, before, after)

    def _join(self, name: str) -> Change:
        stage = self._stage
        before = stage.view()
        began, at = time.monotonic(), time.monotonic_ns()
        self._cluster.start(name)
        stage.workers[name] = "starting"
        stage.tell(f"{name} is starting")
        members = [other for other, does in stage.workers.items() if does == "working"] + [name]
        after = self._wait(f"{name} has its share", lambda: stage.observer.settled(members))
        took = time.monotonic() - began
        self._working(name)
        stage.tell(f"{name} has joined and was handed {len(after.owned_by(node(name)))} slots, one by one")
        return Change(name, at, took, before, after)

    # -- time passes -------------------------------------------------------------------------------

    def _working(self, *names: str, does: str = "working") -> None:
        for name in names:
            self._stage.workers[name] = does

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _wait(self, what: str, happened: Callable[[], View | bool | None]) -> View:
        until = time.monotonic() + TIMEOUT
        while True:
            found = happened()
            if found:
                return found if isinstance(found, View) else self._stage.view()
            if time.monotonic() > until:
                raise StickyError(f"timed out after {TIMEOUT:.0f} s of waiting until {what}")
            self._tick()

    def _tick(self) -> None:
        self._cluster.check()
        if self._since:
            due = (time.monotonic() - self._since) * self._rate
            self._stage.publish(int(due), self._task_seconds)
        if time.monotonic() - self._drawn >= DRAW_EVERY:
            self._look()
        time.sleep(TICK)  # until the next check of what the story waits for

    def _look(self) -> None:
        self._drawn = time.monotonic()
        self._draw(self._stage.scene())
