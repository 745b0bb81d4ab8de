"""Whatever happens to workers, job hosts and their store in a simulated world: jobs run, one run at a time."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from simulator.jobs_scenario import HostFault, Life, Verb
from simulator.run import live_seeds
from simulator.scenario import JOB_POINTS, LIKELY, SLOW, Point, draw
from simulator.shrink import Failure, shrink

SEEDS, PLACED_SEEDS, BATCH = 120, 30, 15

HERE = {"PYTHONPATH": str(Path(__file__).parent.parent)}


BATCHES = [(first, False) for first in range(0, SEEDS, BATCH)] + [
    (first, True) for first in range(0, PLACED_SEEDS, BATCH)
]


@pytest.mark.parametrize(("first", "placed"), BATCHES)
def test_whatever_happens_wanted_jobs_run_once_and_no_notification_is_lost(first: int, placed: bool) -> None:
    totals, failure = live_seeds(range(first, first + BATCH), partial(draw, jobs=True, placed=placed))
    assert failure is None, str(shrink(failure)) if isinstance(failure, Failure) else ""
    assert totals.seeds == BATCH and totals.faults > 2 * BATCH and totals.runs > 10 * BATCH


@pytest.mark.parametrize("placed", [False, True])
def test_everything_that_may_happen_to_jobs_is_drawn(placed: bool) -> None:
    scenarios = [draw(seed, jobs=True, placed=placed) for seed in range(200)]
    worlds = [scenario.jobs for scenario in scenarios if scenario.jobs is not None]
    assert len(worlds) == len(scenarios)
    assert {fault.kind for world in worlds for fault in world.faults} == set(HostFault)
    assert {life for world in worlds for call in world.calls for life in call.lives} == set(Life)
    assert {call.verb for world in worlds for call in world.calls} == set(Verb)
    faults = [fault for scenario in scenarios for fault in scenario.faults]
    assert {fault.kind for fault in faults} == set(LIKELY)
    assert {fault.point for fault in faults} == set(Point if placed else JOB_POINTS)
    assert any(task.seconds == SLOW for scenario in scenarios for task in scenario.tasks)


@pytest.mark.parametrize("world", ["--plain", "--placed"])
def test_a_seed_is_always_the_same_world(world: str) -> None:
    command = [sys.executable, "-m", "simulator", "--jobs", world, "--seed", "17"]
    told = [
        subprocess.run(
            command, env={"PYTHONHASHSEED": salt, **HERE}, capture_output=True, check=True, timeout=60
        ).stdout
        for salt in ("1", "2")
    ]
    assert told[0] == told[1] and b"no promise was broken" in told[0]
