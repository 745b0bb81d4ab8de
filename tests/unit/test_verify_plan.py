"""The plan of faults: drawn from a seed alone, whole, and never such that nobody is left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.cli.verify.cluster import RunOptions
from celery_sticky.cli.verify.plan import CASCADE, FAULTS, GRACEFUL, KINDS, FaultPlan, make_plan
from celery_sticky.cli.verify.run import OF_BROKER, impossible, names_of
from celery_sticky.cli.verify.site import Mode


def plan(faults: Sequence[str] = FAULTS, *, workers: int = 4, seconds: float = 60.0, seed: int = 0) -> FaultPlan:
    few = {"cascade": "too few"} if workers < CASCADE else {}
    return make_plan(
        faults, impossible=few, workers=names_of(workers), seconds=seconds, eviction_timeout=3.8, seed=seed
    )


seeds = st.integers(0, 10**6)
counts = st.integers(2, 9)
lists = st.lists(st.sampled_from(FAULTS), unique=True, min_size=1)


@given(seeds)
def test_equal_seeds_give_equal_plans(seed: int) -> None:
    assert plan(seed=seed) == plan(seed=seed)


def test_seeds_give_plans_of_their_own() -> None:
    assert len({str(plan(seed=seed).steps) for seed in range(10)}) == 10


@given(seeds, counts, st.floats(5, 600))
def test_every_fault_that_was_asked_for_comes_and_nothing_else(seed: int, workers: int, seconds: float) -> None:
    made = plan(workers=workers, seconds=seconds, seed=seed)
    assert {step.fault for step in made.steps} | set(made.kinds) == set(FAULTS) - set(made.left_out)


@given(lists, seeds, st.floats(5, 600))
def test_only_what_was_asked_for_comes(faults: list[str], seed: int, seconds: float) -> None:
    made = plan(faults, seconds=seconds, seed=seed)
    assert {step.fault for step in made.steps} <= set(faults)
    assert set(made.kinds) == set(faults) & set(KINDS)


@given(lists, seeds, counts, st.floats(5, 600))
def test_one_worker_is_left_and_nobody_is_hit_who_is_not_there(
    faults: list[str], seed: int, workers: int, seconds: float
) -> None:
    there = set(names_of(workers))
    for step in plan(faults, workers=workers, seconds=seconds, seed=seed).steps:
        assert set(step.workers) <= there, step
        if step.fault in ("kill", "cascade", "leave"):
            assert there - set(step.workers), step
        if step.fault not in ("stop", "partition", "clock", "child-kill", "loop-hang"):
            there -= set(step.workers)
        assert not there & set(step.names)
        there |= set(step.names)
    assert there


@given(seeds, st.floats(20, 600))
def test_slow_tasks_come_after_all_that_waits_for_the_end_of_tasks(seed: int, seconds: float) -> None:
    names = [step.fault for step in plan(seconds=seconds, seed=seed).steps]
    assert not set(names[names.index("slow") :]) & set(GRACEFUL)


@given(lists, seeds, st.floats(5, 600))
def test_faults_begin_in_turn_and_within_the_time(faults: list[str], seed: int, seconds: float) -> None:
    times = [step.at for step in plan(faults, seconds=seconds, seed=seed).steps]
    assert times == sorted(times) and all(0 < at < seconds for at in times)


def test_a_long_run_has_each_fault_more_than_once() -> None:
    names = [step.fault for step in plan(["kill", "stop", "join"], seconds=120).steps]
    assert min(names.count(fault) for fault in ("kill", "stop")) > 2


def test_what_cannot_be_had_is_left_out_with_the_reason() -> None:
    made = make_plan(
        ["kill", "clock"],
        impossible={"clock": "no library", "partition": "not asked for"},
        workers=names_of(3),
        seconds=20,
        eviction_timeout=3.8,
        seed=1,
    )
    assert {step.fault for step in made.steps} == {"kill"}
    assert made.left_out == {"clock": "no library"}


OWN = {*OF_BROKER, "failover"}


@pytest.mark.parametrize(
    ("run_options", "faults"),
    [
        (RunOptions(broker="redis://h/0"), {*OWN, "store-rollback"}),
        (RunOptions(broker="redis://h/0", store="redis://i/0"), {*OWN, "store-rollback"}),
        (
            RunOptions(broker="sentinel://h"),
            {*OWN, "store-rollback", "partition"},
        ),
        (RunOptions(faults=("failover", "kill")), set()),
        (RunOptions(faults=("failover", "partition")), {"failover"}),
        (RunOptions(store="redis://i/0"), {"store-rollback"}),
        (RunOptions(pool="threads"), {"child-kill"}),
        (RunOptions(workers=2), {"cascade"}),
        (RunOptions(mode=Mode.HASH), {"store-rollback", "wrong-type", "backend-away", "malformed"}),
        (RunOptions(), set()),
    ],
)
def test_a_run_says_which_faults_it_cannot_do(run_options: RunOptions, faults: set[str]) -> None:
    found = impossible(run_options)
    assert set(found) - {"clock"} == faults and all(found.values())
