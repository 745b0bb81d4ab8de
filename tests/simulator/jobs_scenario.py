"""The part of a scenario that is about jobs: what clients ask for, how runs go, and what befalls job hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from simulator.terms import MAX_DELIVERIES

NAME = "job"
"""The name of all jobs; they differ by key."""


class Life(StrEnum):
    """How a run of a job goes, unless it is stopped before."""

    LIVES = "lives"
    ENDS = "ends by itself"
    FAILS = "raises an error"
    NO_START = "fails to start"
    HANGS_AT_START = "never starts"
    HANGS_AT_STOP = "does not stop"
    KILLS_AT_START = "kills its host at its start"
    KILLS = "kills its host"


LIVES = (Life.LIVES,) * 12 + (Life.FAILS,) * 2 + tuple(Life)
KILLINGS = 6
"""How often a job kills its host that does so again and again; at its start, it is given up before."""
SECONDS = (0.0, 0.01, 0.3, 1.0, 3.0)


FOR_EVER = 1e6
"""Longer than a world, in seconds."""


class HostFault(StrEnum):
    """The kinds of faults of a job host."""

    DIES = "its job host dies"
    HANGS = "its job host hangs"
    """Its loop does nothing; the thread that watches the lease goes on."""
    FREEZES = "its job host is frozen"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a worker's job host."""

    at: float
    kind: HostFault
    victim: str
    seconds: float = 0.0

    @property
    def over_at(self) -> float:
        """When it is over; one that lasts for ever is, for others, when it begins."""
        return self.at + (self.seconds if self.seconds < FOR_EVER else 0.0)

    def __str__(self) -> str:
        return f"{self.at:6.2f} {self.victim} {self.kind}" + (f" {self.seconds:.1f} s" if self.seconds else "")


class Verb(StrEnum):
    """What a client may ask for."""

    DISPATCH = "dispatch"
    STOP = "stop"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a client, at `at` (seconds)."""

    at: float
    number: int
    verb: Verb
    key: int
    lives: tuple[Life, ...] = ()
    """DISPATCH: how its first runs go; later ones live until they are stopped."""
    seconds: float = 0.01
    """DISPATCH: how long its runs take to start, and to stop; those that end or kill do so after three times that."""

    def __str__(self) -> str:
        lives = f": {', then '.join(self.lives)}; {self.seconds:.2f} s" if self.verb is Verb.DISPATCH else ""
        return f"{self.at:6.2f} {self.verb} {self.key} #{self.number}{lives}"


@dataclass(frozen=True, slots=True)
class Jobs:
    """What a seed decides about the jobs of a world."""

    calls: tuple[Call, ...] = ()
    faults: tuple[Fault, ...] = ()


def failures(number: int) -> int:
    """Return how many deliveries of a notification fail, by the number of the call that sends it."""
    return {3: 2, 5: MAX_DELIVERIES}.get(number % 8, 0)


def draw_jobs(seed: int, names: str, slots: int, trouble: float) -> Jobs:
    """Return the jobs of a seed's world."""
    rng = Random(f"jobs {seed}")
    keys = rng.randint(2, slots + 3)
    times = sorted(_when(rng, trouble) for _ in range(rng.randint(5, 30)))
    return Jobs(
        tuple(_call(rng, at, number, keys) for number, at in enumerate(times)),
        tuple(sorted(_faults(rng, names, trouble), key=lambda fault: fault.at)),
    )


def _when(rng: Random, trouble: float) -> float:
    return rng.choice((0.0, 10.0, 20.0)) + rng.uniform(0, 0.1) if rng.random() < 0.4 else rng.uniform(0, trouble)


def _call(rng: Random, at: float, number: int, keys: int) -> Call:
    verb = rng.choices(tuple(Verb), (6, 2, 3))[0]
    key, seconds = rng.randrange(keys), rng.choice(SECONDS) * rng.uniform(0.5, 1.0)
    killer = (rng.choice((Life.KILLS_AT_START, Life.KILLS)),) * KILLINGS
    lives = killer if rng.random() < 0.06 else tuple(rng.choice(LIVES) for _ in range(2))
    return Call(at, number, verb, key, lives, seconds) if verb is Verb.DISPATCH else Call(at, number, verb, key)


def _faults(rng: Random, names: str, trouble: float) -> Iterator[Fault]:
    for _ in range(rng.choice((0, 0, 1, 2))):
        kind = rng.choice(tuple(HostFault))
        seconds = 0.0 if kind is HostFault.DIES else rng.choice((0.5, 3.0, 9.0, 20.0, FOR_EVER))
        yield Fault(rng.uniform(4, trouble), kind, rng.choice(names), seconds)
