"""The plan of faults with their times and targets, drawn from a seed. This module does no I/O and reads no clock."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from celery_sticky.cli.verify.cast import Cast
from celery_sticky.cli.verify.faults import FAULTS
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.faults.deployments import Leave
from celery_sticky.cli.verify.faults.orders import Slow

LEAD_IN = 1.0
"""Seconds of load before the first fault."""
SHARE = 0.93
"""Share of the run's time in which faults may begin."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run."""

    steps: tuple[Fault, ...]
    kinds: tuple[str, ...]
    """Names of the kinds of tasks that senders mix in."""
    left_out: Mapping[str, str]
    """Names of requested faults that are impossible in this run -> reason."""


def make_plan(
    wanted: Collection[type[Fault]],
    *,
    impossible: Mapping[type[Fault], str],
    workers: Sequence[str],
    seconds: float,
    eviction_timeout: float,
    seed: int,
    jobs: bool = False,
) -> FaultPlan:
    """Return the plan of a seed.

    Args:
        wanted: the requested faults.
        impossible: faults that are impossible in this run -> reason.
        workers: names of the initial workers, at least two.
        seconds: duration of the load. Each fault comes at least once, even if that takes longer.
        eviction_timeout: seconds after which a silent worker is evicted.
        seed: equal seeds give equal plans.
        jobs: whether jobs run. Then `slow` also comes first, beside a job: later there may be no time for it.
    """
    draw = random.Random(seed)
    possible = [fault for fault in FAULTS if fault in wanted and fault not in impossible]
    timed = [fault for fault in possible if not fault.mixed_in]
    room = max(seconds * SHARE - LEAD_IN, 0.0)
    lengths = {fault: fault.length(eviction_timeout, len(workers)) for fault in timed}
    sequence = _sequence(timed, draw, room, lengths)
    least = max((fault.least for fault in timed), default=Fault.least)
    drafts = _drafts(sequence, Cast(workers, draw, eviction_timeout, least))
    if Slow in timed:
        last = max((at for at, fault in enumerate(drafts) if fault.graceful), default=-1)
        drafts.insert(draw.randint(last + 1, len(drafts)), Slow())
        if jobs:
            drafts.insert(0, Slow(tasks=1, beside_job=True))
    return FaultPlan(
        _timed(drafts, room, lengths),
        tuple(fault.name for fault in possible if fault.mixed_in),
        {fault.name: why for fault, why in impossible.items() if fault in wanted},
    )


Lengths = Mapping[type[Fault], float]


def _timed(drafts: Sequence[Fault], room: float, lengths: Lengths) -> tuple[Fault, ...]:
    """Spread the faults over the time, each by its length."""
    total = sum(lengths[type(fault)] for fault in drafts)
    at, steps = LEAD_IN, []
    for fault in drafts:
        steps.append(replace(fault, at=round(at, 2)))
        at += lengths[type(fault)] * (room / total)
    return tuple(steps)


def _sequence(faults: Sequence[type[Fault]], draw: random.Random, room: float, lengths: Lengths) -> list[type[Fault]]:
    """Return each fault except `Slow` once, in random order, and repeat faults while there is time."""
    once = [fault for fault in faults if fault is not Slow]
    sequence: list[type[Fault]] = []
    while once:
        turn = draw.sample(once, len(once))
        if sequence:
            spent = sum(lengths[fault] for fault in sequence)
            turn = [fault for fault in turn if (spent := spent + lengths[fault]) <= room]
            if not turn:
                break
        sequence += turn
    return sequence


def _drafts(sequence: Sequence[type[Fault]], cast: Cast) -> list[Fault]:
    """Choose the targets. A fault with too few or too many workers is postponed until it is possible."""
    drafts, late = list[Fault](), list[type[Fault]]()
    for fault in sequence:
        late.append(fault)
        for kind in list(late):
            if (draft := kind.draft(cast)) is not None:
                late.remove(kind)
                drafts.append(draft)
    if Leave in late and len(cast.everybody) > 1 and not any(isinstance(draft, Leave) for draft in drafts):
        drafts.append(Leave.last(cast))
    return drafts
