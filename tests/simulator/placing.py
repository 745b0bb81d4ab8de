"""How a simulated keyspace places its keys, and which keys its workers pin: data drawn from a seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from celery_sticky.keys import hash_key
from celery_sticky.keyspace import Assign, Keyspace, Worker, jump
from simulator.terms import KEYSPACE


def rendezvous(key: str, workers: Sequence[Worker]) -> Worker:
    """Give each key to a worker of its own; when a worker comes or goes, only its own keys move."""
    return max(workers, key=lambda worker: hash_key(f"{worker.name} {key}".encode()))


def oldest(_: str, workers: Sequence[Worker]) -> Worker:
    """Give all keys to one worker."""
    return workers[0]


@dataclass(frozen=True, slots=True)
class PlacementSetup:
    """The placement of keys."""

    assign: Assign | None = None
    pins: bool = False
    unpinned: str = "slot"

    def __str__(self) -> str:
        by = self.keyspace.placed_by
        return f"{by}, unpinned {self.unpinned}" if self.pins else by

    @property
    def keyspace(self) -> Keyspace:
        """The keyspace as an app declares it."""
        return Keyspace(KEYSPACE, assign=self.assign, pins=self.pins, unpinned=self.unpinned)


WAYS = (
    PlacementSetup(pins=True),
    PlacementSetup(pins=True, unpinned="refuse"),
    PlacementSetup(rendezvous),
    PlacementSetup(rendezvous, pins=True),
    PlacementSetup(rendezvous, pins=True, unpinned="refuse"),
    PlacementSetup(jump),
    PlacementSetup(oldest, pins=True),
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A worker pins a key at `at` (seconds)."""

    at: float
    worker: str
    key: int
    take: bool = False
    """Take the key even from another worker."""
    again: bool = False
    """Whether it pins the key again when it is told that it lost it."""
    seconds: float = 0.0
    """Seconds after which it removes the pin; 0: never."""

    def __str__(self) -> str:
        words = [f"{self.at:6.2f} {self.worker} {'takes' if self.take else 'pins'} key {self.key}"]
        words += ["again when lost"] if self.again else []
        words += [f"for {self.seconds:.1f} s"] if self.seconds else []
        return ", ".join(words)


def draw_pins(rng: Random, names: str, keys: Collection[int], until: float) -> tuple[Pin, ...]:
    """Return pins of these keys. Most are early, because messages sent before have no place if pins are required."""
    early = [_pin(rng, names, key, rng.uniform(0, 8)) for key in keys if rng.random() < 0.7]
    late = [_pin(rng, names, rng.choice(sorted(keys)), rng.uniform(0, until)) for _ in range(rng.randint(0, 6))]
    return tuple(sorted(early + late, key=lambda pin: pin.at))


def _pin(rng: Random, names: str, key: int, at: float) -> Pin:
    return Pin(
        at=at,
        worker=rng.choice(names),
        key=key,
        take=rng.random() < 0.5,
        again=rng.random() < 0.6,
        seconds=rng.choice((0.0, 0.0, 0.5, 5.0, 15.0)),
    )
