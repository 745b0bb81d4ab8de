"""The plan of faults with their times and targets, drawn from a seed. This module does no I/O and reads no clock."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GRACEFUL = ("term", "join", "leave", "rolling", "surge", "loop-hang")
"""Steps that wait until tasks have ended. They come before the slow tasks."""
SUDDEN = (
    *("kill", "cascade", "stop", "child-kill", "partition"),
    *("broker-restart", "broker-freeze", "clock", "store-rollback"),
    "broker-rollback",
    "backend-away",
    "failover",
    *("broker-full", "wrong-type"),
)
ORDERS = ("oom", "burst", "slow", "big", "malformed")
"""Extra messages that senders send when ordered."""
KINDS = ("eta", "retry", "raise")
"""Kinds of tasks that senders mix into the load all the time."""
FAULTS = (*SUDDEN, *GRACEFUL, *ORDERS, *KINDS)

LEAD_IN = 1.0
"""Seconds of load before the first fault."""
SHARE = 0.93
"""Share of the run's time in which faults may begin."""
SKEWS = (-3600, -30, 30)
"""Possible jumps of a wall clock, in seconds. A jump ahead is short, because tasks deferred during it run that much
later."""
SLOW = 3
"""Number of slow tasks at a time."""
CASCADE = 3
"""Minimum number of workers for a cascade, which kills two."""
MORE = 2
"""Maximum number of workers beyond the initial ones."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault."""

    at: float
    """Earliest time, in seconds since the load began. The step also waits for the end of the previous fault."""
    fault: str
    workers: tuple[str, ...] = ()
    """The workers that it hits; for `rolling` and `surge` all workers, one after the other."""
    names: tuple[str, ...] = ()
    """Names of the workers that start because of it."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        whom = " ".join(self.workers if len(self.workers) < 3 else (self.workers[0], "…", self.workers[-1]))
        return " ".join(word for word in (self.fault, whom, *map(str, self.detail.values())) if word)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run."""

    steps: tuple[Step, ...]
    kinds: tuple[str, ...]
    left_out: Mapping[str, str]
    """Requested faults that are impossible in this run -> reason."""


def make_plan(
    wanted: Collection[str],
    *,
    impossible: Mapping[str, str],
    workers: Sequence[str],
    seconds: float,
    eviction_timeout: float,
    seed: int,
) -> FaultPlan:
    """Return the plan of a seed.

    Args:
        wanted: the requested faults, from `FAULTS`.
        impossible: faults that are impossible in this run -> reason.
        workers: names of the initial workers, at least two.
        seconds: duration of the load. Each fault comes at least once, even if that takes longer.
        eviction_timeout: seconds after which a silent worker is evicted.
        seed: equal seeds give equal plans.
    """
    draw = random.Random(seed)
    possible = [fault for fault in FAULTS if fault in wanted and fault not in impossible]
    timed = [fault for fault in possible if fault not in KINDS]
    room = max(seconds * SHARE - LEAD_IN, 0.0)
    names = _sequence(timed, draw, room, eviction_timeout, len(workers))
    cast = _Cast(list(workers), draw, eviction_timeout)
    drafts = cast.drafts(names)
    if "slow" in timed:
        last = max((at for at, step in enumerate(drafts) if step.fault in GRACEFUL), default=-1)
        drafts.insert(draw.randint(last + 1, len(drafts)), Step(0, "slow", detail={"tasks": SLOW}))
    lengths = [_length(step.fault, eviction_timeout, len(workers)) for step in drafts]
    scale = room / sum(lengths) if lengths else 0.0
    at, steps = LEAD_IN, []
    for step, length in zip(drafts, lengths, strict=True):
        steps.append(Step(round(at, 2), step.fault, step.workers, step.names, step.detail))
        at += length * scale
    left_out = {fault: why for fault, why in impossible.items() if fault in wanted}
    return FaultPlan(tuple(steps), tuple(fault for fault in possible if fault in KINDS), left_out)


def _length(fault: str, eviction_timeout: float, workers: int) -> float:
    """Return the approximate number of seconds until the cluster has recovered from a fault."""
    return {
        "kill": eviction_timeout + 3,
        "cascade": eviction_timeout + 4,
        "stop": eviction_timeout + 3,
        "partition": eviction_timeout + 3,
        "store-rollback": eviction_timeout + 2,
        "rolling": 3.5 * workers,
        "surge": 2.5 * workers,
        "term": 4.0,
        "join": 3.5,
        "broker-restart": 3.0,
        "broker-freeze": 3.0,
        "broker-rollback": 4.0,
        "failover": 8.0,
        "broker-full": 3.0,
        "wrong-type": 5.0,
        "big": 2.0,
        "loop-hang": 2 * eviction_timeout + 2,
        "clock": 3.0,
        "backend-away": 6.0,
        "oom": 2.0,
    }.get(fault, 1.0)


def _sequence(
    faults: Sequence[str], draw: random.Random, room: float, eviction_timeout: float, workers: int
) -> list[str]:
    """Return each fault except `slow` once, in random order, and repeat faults while there is time."""
    once = [fault for fault in faults if fault != "slow"]
    names: list[str] = []
    while once:
        turn = draw.sample(once, len(once))
        if names:
            spent = sum(_length(name, eviction_timeout, workers) for name in names)
            turn = [name for name in turn if (spent := spent + _length(name, eviction_timeout, workers)) <= room]
            if not turn:
                break
        names += turn
    return names


class _Cast:
    """Keeps track of the running workers, to choose the target of each step."""

    def __init__(self, workers: list[str], draw: random.Random, eviction_timeout: float) -> None:
        self._there, self._draw, self._eviction_timeout = workers, draw, eviction_timeout
        self._most, self._named, self._orders = len(workers) + MORE, len(workers), 0
        self._least = 2
        """Minimum number of workers after a `leave`, so that a kill stays possible; one more for a cascade."""

    def drafts(self, faults: Sequence[str]) -> list[Step]:
        """Return a step for each fault. A fault with too few or too many workers is postponed until it is possible."""
        self._least = 3 if "cascade" in faults else 2
        steps, late = list[Step](), list[str]()
        for fault in faults:
            late.append(fault)
            for name in list(late):
                if (step := self._draft(name)) is not None:
                    late.remove(name)
                    steps.append(step)
        if "leave" in late and len(self._there) > 1 and not any(step.fault == "leave" for step in steps):
            steps.append(self._left())
        return steps

    def _draft(self, fault: str) -> Step | None:
        made: Step | None = getattr(self, "_" + fault.replace("-", "_"))()
        return made

    def _one(self) -> str:
        return self._draw.choice(self._there)

    def _new(self) -> str:
        self._named += 1
        return f"w{self._named}"

    def _past_the_lease(self) -> float:
        return round(self._eviction_timeout + self._draw.uniform(0.3, 1.5), 1)

    def _renamed(self, name: str) -> str:
        """Return the name under which a worker restarts: its own or a new one."""
        again = name if self._draw.random() < 0.5 else self._new()
        self._there[self._there.index(name)] = again
        return again

    def _kill(self) -> Step:
        name = self._one()
        return Step(0, "kill", (name,), (self._renamed(name),))

    def _cascade(self) -> Step | None:
        if len(self._there) < CASCADE:
            return None
        names = tuple(self._draw.sample(self._there, 2))
        return Step(0, "cascade", names, tuple(map(self._renamed, names)))

    def _term(self) -> Step:
        name = self._one()
        return Step(0, "term", (name,), (self._renamed(name),))

    def _stop(self) -> Step:
        return Step(
            0,
            "stop",
            (self._one(),),
            detail={"seconds": round(self._eviction_timeout + self._draw.uniform(0.3, 1.5), 1)},
        )

    def _child_kill(self) -> Step:
        return Step(0, "child-kill", (self._one(),))

    def _partition(self) -> Step:
        detail = {
            "from": self._draw.choice(("store", "broker", "both")),
            "how": self._draw.choice(("cut", "silence")),
            "seconds": self._past_the_lease(),
        }
        return Step(0, "partition", (self._one(),), detail=detail)

    def _broker_restart(self) -> Step:
        return Step(0, "broker-restart", detail={"how": self._draw.choice(("kill", "term"))})

    def _broker_freeze(self) -> Step:
        return Step(0, "broker-freeze", detail={"seconds": round(self._draw.uniform(0.5, 4.0), 1)})

    def _broker_rollback(self) -> Step:
        return Step(0, "broker-rollback", detail={"seconds": round(self._draw.uniform(0.5, 2.5), 1)})

    def _backend_away(self) -> Step:
        return Step(0, "backend-away", detail={"seconds": round(self._draw.uniform(2.0, 5.0), 1)})

    def _malformed(self) -> Step:
        return Step(0, "malformed", detail={"messages": self._draw.choice((10, 20, 40))})

    def _failover(self) -> Step:
        return Step(0, "failover")

    def _broker_full(self) -> Step:
        return Step(0, "broker-full", detail={"seconds": round(self._draw.uniform(1.0, 3.0), 1)})

    def _wrong_type(self) -> Step:
        return Step(0, "wrong-type", detail={"seconds": round(self._draw.uniform(0.5, 2.0), 1)})

    def _big(self) -> Step:
        return Step(0, "big", detail={"tasks": 4, "megabytes": self._draw.choice((1, 3, 10))})

    def _loop_hang(self) -> Step:
        return Step(0, "loop-hang", (self._one(),))

    def _clock(self) -> Step:
        return Step(0, "clock", (self._one(),), detail={"seconds": self._draw.choice(SKEWS)})

    def _store_rollback(self) -> Step:
        return Step(0, "store-rollback", detail={"how": self._draw.choice(("restart", "in place"))})

    def _join(self) -> Step | None:
        if len(self._there) >= self._most:
            return None
        name = self._new()
        self._there.append(name)
        return Step(0, "join", names=(name,))

    def _leave(self) -> Step | None:
        return self._left() if len(self._there) > self._least else None

    def _left(self) -> Step:
        name = self._one()
        self._there.remove(name)
        return Step(0, "leave", (name,))

    def _rolling(self) -> Step:
        old = tuple(self._there)
        if self._draw.random() < 0.5:
            return Step(0, "rolling", old, old, {"names": "same names"})
        self._there[:] = [self._new() for _ in old]
        return Step(0, "rolling", old, tuple(self._there), {"names": "new names"})

    def _surge(self) -> Step:
        old = tuple(self._there)
        self._there[:] = [self._new() for _ in old]
        return Step(0, "surge", old, tuple(self._there))

    def _oom(self) -> Step:
        self._orders += 1
        return Step(0, "oom", detail={"number": self._orders})

    def _burst(self) -> Step:
        return Step(0, "burst", detail={"tasks": self._draw.choice((100, 200, 400))})
