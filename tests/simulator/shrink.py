"""Reduces a failing scenario to as few faults and tasks as still break the same invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from traceback import format_exception
from typing import Any, TypeVar

from simulator.invariants import Invariant, Violation
from simulator.jobs_scenario import Jobs
from simulator.scenario import Scenario
from simulator.world import World

T = TypeVar("T")

LINES = 30
"""Lines of the trace to show."""
LIVES = 400
"""Maximum number of worlds to simulate in search of a smaller scenario."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A scenario, the invariant it broke, and how."""

    scenario: Scenario
    invariant: Invariant
    text: str
    at: float
    trace: tuple[str, ...]

    def __str__(self) -> str:
        scenario = self.scenario
        head = f"seed {scenario.seed}, at {self.at:.3f} s: {self.text}"
        world = f"workers {', '.join(scenario.names)}; {scenario.slots} slots; losses {scenario.losses:.0%} of requests"
        faults = [f"  fault {fault}" for fault in scenario.faults]
        jobs = scenario.jobs or Jobs()
        faults += [f"  fault {fault}" for fault in jobs.faults]
        calls = [f"  call  {call}" for call in jobs.calls]
        tasks = [f"  task  {task}" for task in scenario.tasks]
        pins = [f"  pin   {pin}" for pin in scenario.pins]
        placed = [f"keys are placed by {scenario.placement}"] if scenario.placement is not None else []
        placed += [f"{scenario.away} is not started again"] if scenario.away else []
        if scenario.claim_ahead is not None:
            placed += [f"at most {scenario.claim_ahead} runs are claimed ahead"]
        trace = ["trace:", *(f"  {line}" for line in self.trace)]
        return "\n".join([head, world, *placed, *faults, *pins, *tasks, *calls, *trace])


def live(scenario: Scenario) -> World | Failure:
    """Simulate a scenario; return the world, in order, or the failure."""
    world = World(scenario)
    try:
        return world.live()
    except Violation as violation:
        return Failure(scenario, violation.invariant, str(violation), world.now, tuple(world.lines(LINES)))
    except Exception as error:
        text = f"{Invariant.ERROR}: {''.join(format_exception(error)[-2:])}"
        return Failure(scenario, Invariant.ERROR, text, world.now, tuple(world.lines(LINES)))


def shrink(failure: Failure, most: int = LIVES) -> Failure:
    """Return the smallest failure of the same kind found within `most` simulations."""
    found, lives = failure, 0

    def fails(scenario: Scenario) -> bool:
        nonlocal found, lives
        if lives >= most:
            return False
        lives += 1
        outcome = live(scenario)
        same = isinstance(outcome, Failure) and outcome.invariant is failure.invariant
        if same and isinstance(outcome, Failure):
            found = outcome
        return same

    fails(replace(found.scenario, losses=0.0, broker_losses=0.0))
    _reduce(found.scenario.faults, lambda faults: fails(replace(found.scenario, faults=faults)))
    _reduce(found.scenario.pins, lambda pins: fails(replace(found.scenario, pins=pins)))
    if (jobs := found.scenario.jobs) is not None:
        _reduce(jobs.faults, lambda faults: fails(_with_jobs(found.scenario, faults=faults)))
        _reduce(jobs.calls, lambda calls: fails(_with_jobs(found.scenario, calls=calls)))
    _reduce(found.scenario.tasks, lambda tasks: fails(replace(found.scenario, tasks=tasks)))
    _reduce(found.scenario.faults, lambda faults: fails(replace(found.scenario, faults=faults)))
    while len(found.scenario.names) > 1 and fails(replace(found.scenario, names=found.scenario.names[:-1])):
        pass
    return found


def _with_jobs(scenario: Scenario, **changes: Any) -> Scenario:
    return replace(scenario, jobs=replace(scenario.jobs or Jobs(), **changes))


def _reduce(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> None:
    """Leave out smaller and smaller parts as long as the rest still fails (delta debugging)."""
    kept = tuple(items)
    size = len(kept)
    while size:
        at = 0
        while at < len(kept):
            without = kept[:at] + kept[at + size :]
            if fails(without):
                kept = without
            else:
                at += size
        size //= 2
