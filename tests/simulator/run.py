"""Many seeds, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial

from simulator.scenario import Scenario, draw
from simulator.shrink import Failure, live

BATCH = 25
"""Seeds that a process takes at a time."""


@dataclass(slots=True)
class Totals:
    """What worlds have lived through."""

    seeds: int = 0
    events: int = 0
    faults: int = 0
    tasks: int = 0
    runs: int = 0
    evictions: int = 0
    seconds: float = 0.0
    """Virtual ones."""

    def add(self, other: Totals) -> None:
        """Take in what others have counted."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def live_seeds(
    seeds: Iterable[int], scenario: Callable[[int], Scenario] = draw, *, until: float = float("inf")
) -> tuple[Totals, Failure | None]:
    """Live through seeds up to the first that fails, or to `until` on the monotonic clock."""
    totals = Totals()
    for seed in seeds:
        if time.monotonic() > until:
            break
        outcome = live(scenario(seed))
        if isinstance(outcome, Failure):
            return totals, outcome
        witness = outcome.witness
        counted = (1, outcome.events, outcome.struck, len(outcome.tasks), witness.begun, len(witness.evicted))
        totals.add(Totals(*counted, outcome.now))
    return totals, None


def live_all(
    first: int, seeds: int, jobs: int, seconds: float = float("inf"), *, placed: bool | None = None, held: bool = False
) -> Iterator[tuple[Totals, Failure | None]]:
    """Live through seeds in `jobs` processes, for at most `seconds`; yield totals so far after each batch."""
    totals, until = Totals(), time.monotonic() + seconds
    batches = [range(at, min(at + BATCH, first + seeds)) for at in range(first, first + seeds, BATCH)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for counted, failure in pool.imap_unordered(_Batch(until, placed, held), batches):
            totals.add(counted)
            yield totals, failure


@dataclass(frozen=True)
class _Batch:
    until: float
    placed: bool | None
    held: bool

    def __call__(self, seeds: range) -> tuple[Totals, Failure | None]:
        return live_seeds(seeds, partial(draw, placed=self.placed, held=self.held), until=self.until)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
