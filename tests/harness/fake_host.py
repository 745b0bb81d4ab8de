"""A job host without a process, and a record of the jobs in all such hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.strikes import Who
from celery_sticky.jobs.wire import (
    Ended,
    Failed,
    Message,
    Noted,
    Notify,
    Save,
    Saved,
    SaveRefused,
    Start,
    Started,
    Stop,
    Taken,
    Unhandled,
    Yielded,
)


@dataclass
class World:
    """The true state of all jobs, whether or not a worker knows it."""

    running: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """(name, key) → (worker, epoch) of each job that runs."""
    starts: list[tuple[str, str, int]] = field(default_factory=list)
    """(key, worker, epoch) of each start."""
    payloads: dict[str, Any] = field(default_factory=dict)
    """Job id → the payload of its last start."""
    saves: int = 0
    """The number of the last checkpoint of any job; its text is its number."""
    saved: dict[str, int] = field(default_factory=dict)
    """Job id → its last checkpoint that was stored, as far as its runs know."""
    noted: dict[str, list[Any]] = field(default_factory=dict)
    """Job id → the payloads of its notifications that it handled."""
    delivered: list[tuple[Any, int]] = field(default_factory=list)
    """Payload and number of each delivery of a notification."""


class FakeHost:
    """A job host that handles one message each time the test calls `step`."""

    def __init__(self, worker: str, world: World) -> None:
        self.worker, self.world = worker, world
        self.number = 0
        self.up = False
        self.inbox: deque[Message] = deque()
        self.runs: dict[int, Start] = {}
        self.keeper: Keeper
        self.failing: set[str] = set()
        self.apart: list[str] = []
        """The keys that had to be alone, each time they were placed."""
        self.bad: dict[Any, str] = {}
        """Payload of a notification → what its job does with it: raises, dies, holds."""
        self.refused: list[SaveRefused] = []

    def boot(self) -> None:
        self.number += 1
        self.up = True
        self.keeper.hosts_up(up=True)
        self.keeper.host_started()

    def place(self, who: Who, label: str, home: Home) -> int:
        self.apart += [who[1]] if home.alone else []
        return self.number if self.up else 0

    def say(self, number: int, messages: Sequence[Message]) -> None:
        if number == self.number and self.up:
            self.inbox.extend(messages)

    def kill(self, number: int, reason: str, blame: Blame) -> None:
        if number == self.number and self.up:
            self.die(blame)
            self.boot()

    def die(self, blame: Blame | None = None) -> None:
        self.up = False
        for start in self.runs.values():
            self.world.running.pop((start.name, start.key), None)
        self.runs.clear()
        self.inbox.clear()
        self.keeper.hosts_up(up=False)
        self.keeper.host_ended(self.number, blame or {})

    def step(self) -> None:
        if not self.inbox:
            return
        match self.inbox.popleft():
            case Start() as start if start.key in self.failing:
                self.keeper.heard(Failed(start.ref, "ValueError: no"))
            case Start() as start:
                job = (start.name, start.key)
                assert job not in self.world.running, f"{job} runs already, at {self.world.running[job]}"
                lost = f"checkpoint {self.world.saved.get(start.id)} of {job} is lost: {start.saved}"
                assert (start.saved or 0) >= self.world.saved.get(start.id, 0), lost
                assert all(e <= start.epoch for k, _, e in self.world.starts if k == start.key), "an old epoch"
                self.world.running[job] = (self.worker, start.epoch)
                self.world.payloads[start.id] = start.payload
                self.world.starts.append((start.key, self.worker, start.epoch))
                self.runs[start.ref] = start
                self.keeper.heard(Started(start.ref))
            case Stop(ref) if ref in self.runs:
                self.end(ref)
            case Saved(ref, number) if ref in self.runs:
                self.world.saved[self.runs[ref].id] = number
            case SaveRefused() as refused:
                self.refused.append(refused)
            case Notify(ref, note, payload, delivery) if ref in self.runs:
                self.world.delivered.append((payload, delivery))
                self.keeper.heard(Taken(ref, note, delivery))
                self._handle(ref, note, payload, delivery)

    def _handle(self, ref: int, note: str, payload: Any, delivery: int) -> None:
        match self.bad.get(payload):
            case "raises":
                self.keeper.heard(Unhandled(ref, note, delivery, "ValueError: bad"))
                self.end(ref, "ValueError: bad")
                self.inbox = deque(said for said in self.inbox if not isinstance(said, Notify) or said.ref != ref)
            case "dies":
                self.die({ref: "its process ended"})
                self.boot()
            case None:
                self.world.noted.setdefault(self.runs[ref].id, []).append(payload)
                self.keeper.heard(Noted(ref, note))

    def save(self, ref: int) -> None:
        self.world.saves += 1
        self.keeper.heard(Save(ref, self.world.saves, str(self.world.saves)))

    def end(self, ref: int, error: str = "", *, yields: bool = False) -> None:
        start = self.runs.pop(ref)
        del self.world.running[start.name, start.key]
        self.keeper.heard(Yielded(ref, error) if yields else Ended(ref, error))
