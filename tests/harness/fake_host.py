"""A job host without a process, and a record of the jobs in all such hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Notify, Start, Started, Stop


@dataclass
class World:
    """The true state of all jobs, whether or not a worker knows it."""

    running: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """(name, key) → (worker, epoch) of each job that runs."""
    starts: list[tuple[str, str, int]] = field(default_factory=list)
    """(key, worker, epoch) of each start."""
    noted: dict[str, list[Any]] = field(default_factory=dict)
    """Job id → the payloads of its notifications."""


class FakeHost:
    """A job host that handles one message each time the test calls `step`."""

    def __init__(self, worker: str, world: World, clock: Callable[[], float]) -> None:
        self.worker, self.world, self._clock = worker, world, clock
        self.suspects = Suspects()
        self.number = 0
        self.inbox: deque[Message] = deque()
        self.runs: dict[int, Start] = {}
        self.keeper: Keeper
        self.failing: set[str] = set()

    def boot(self) -> None:
        self.number += 1
        self.keeper.host_started(self.number)

    def say(self, number: int, messages: Sequence[Message]) -> None:
        if number == self.number:
            self.inbox.extend(messages)

    def kill(self, number: int, reason: str) -> None:
        if number == self.number:
            self.die(killed=True)
            self.boot()

    def die(self, *, killed: bool = False) -> None:
        self.number += 1
        self.suspects.host_ended(self._clock(), killed=killed)
        for start in self.runs.values():
            self.world.running.pop((start.name, start.key), None)
        self.runs.clear()
        self.inbox.clear()
        self.keeper.host_ended()

    def step(self) -> None:
        if not self.inbox:
            return
        match self.inbox.popleft():
            case Start() as start if start.key in self.failing:
                self.keeper.heard(Failed(start.ref, "ValueError: no"))
            case Start() as start:
                job = (start.name, start.key)
                assert job not in self.world.running, f"{job} runs already, at {self.world.running[job]}"
                assert all(e <= start.epoch for k, _, e in self.world.starts if k == start.key), "an old epoch"
                self.world.running[job] = (self.worker, start.epoch)
                self.world.starts.append((start.key, self.worker, start.epoch))
                self.runs[start.ref] = start
                self.keeper.heard(Started(start.ref))
            case Stop(ref) if ref in self.runs:
                self.end(ref)
            case Notify(ref, note, payload) if ref in self.runs:
                self.world.noted.setdefault(self.runs[ref].id, []).append(payload)
                self.keeper.heard(Noted(ref, note))

    def end(self, ref: int, error: str = "") -> None:
        start = self.runs.pop(ref)
        del self.world.running[start.name, start.key]
        self.keeper.heard(Ended(ref, error))
