"""Whatever happens to workers, store and network in a simulated world, no promise is broken."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulator import scale
from simulator.invariants import Invariant, Violation, Witness
from simulator.member import NEVER, SimulatedLease
from simulator.placing import WAYS
from simulator.run import Totals, live_seeds
from simulator.scenario import PLACED_POINTS, PLAIN_POINTS, Kind, draw
from simulator.shrink import Failure, live, shrink
from simulator.world import World

from celery_sticky.delivery.gate import Entry, Gate
from celery_sticky.delivery.key_claims import KeyClaims
from celery_sticky.instrumentation.facts import EvictedHere, Fact, SlotsGained, SlotsTakenOver, WorkerEvicted
from celery_sticky.queues.base import Tenure
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.placement import Answer, Wish

SEEDS, BATCH = 2000, 50

HERE = {"PYTHONPATH": str(Path(__file__).parent.parent)}


def lived(*outcome: object) -> Totals:
    totals, failure = outcome
    assert failure is None, str(shrink(failure)) if isinstance(failure, Failure) else ""
    assert isinstance(totals, Totals)
    return totals


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_whatever_happens_no_promise_is_broken(first: int) -> None:
    totals = lived(*live_seeds(range(first, first + BATCH)))
    assert totals.seeds == BATCH and totals.faults > BATCH and totals.runs > totals.tasks > 5 * BATCH


@pytest.mark.parametrize("seed", [764147670, 890132912])
def test_a_retry_that_the_broker_never_hears_of_takes_nothing_back_that_another_run_has_done(seed: int) -> None:
    """764147670: a frozen owner says so after the next one has finished the task. 890132912: the owner before had."""
    lived(*live_seeds(range(seed, seed + 1), partial(draw, placed=False)))


def test_a_number_that_is_given_twice_in_one_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker goes back to a moment of the present opening, and the answer that would tell is lost."""
    live = partial(live_seeds, range(879905947, 879905948), partial(draw, placed=False))
    lived(*live())
    monkeypatch.setattr(Tenure, "trip", lambda self, number: f"{self.incarnation}.{self.open_count}")
    _, failure = live()
    assert failure is not None and failure.invariant is Invariant.SETTLED_ANOTHER


@pytest.mark.parametrize("seed", [4018540, 7019015])
def test_a_store_that_is_lost_again_right_after_its_fresh_document_was_written(seed: int) -> None:
    """A member that has not seen that document has waited long enough, and writes another one.

    4018540: members of the first one must not swap over it. 7019015: nobody may own anything by the first one still.
    Both are plain worlds, as they were before there were others.
    More than one rule stands in their way by now: each alone is guarded in test_machine.py and test_changes.py.
    """
    lived(*live_seeds(range(seed, seed + 1)))


def test_without_faults_nobody_is_evicted_and_a_lost_answer_now_and_then_is_no_fault() -> None:
    assert lived(*live_seeds(range(40), lambda seed: draw(seed, kinds=()))).evictions == 0


def test_without_any_signal_no_promise_is_broken_either() -> None:
    """Signals are hints: a lost one costs one heartbeat."""
    lived(*live_seeds(range(5000, 5060), lambda seed: draw(seed, deaf=True)))


OWNERS: tuple[type[Fact], ...] = (SlotsTakenOver, SlotsGained, WorkerEvicted, EvictedHere)


def test_what_workers_report_about_owners_is_true_while_no_signal_is_lost() -> None:
    """Only who was evicted, or started again, is called dead, and nobody gains a slot from itself."""
    facts = Counter[type[Fact]]()
    for seed in range(60):
        world = World(replace(draw(seed, kinds=(Kind.CRASH, Kind.PAUSE, Kind.LEAVE, Kind.JOIN)), losses=0.0))
        told = list[Fact]()
        for kind in OWNERS:
            world.instruments.add(kind, told.append)
        world.live()
        facts.update(map(type, told))
        crashed = {fault.victim for fault in world.scenario.faults if fault.kind is Kind.CRASH}
        for fact in told:
            match fact:
                case SlotsTakenOver(_, _, owner):
                    # Who starts again gives the slots of its dead incarnation away, also to others.
                    assert owner in [*world.witness.evicted, *crashed], f"{seed}: {fact}"
                case SlotsGained(worker, _, owners):
                    assert worker not in owners, f"{seed}: {fact}"
                case WorkerEvicted(_, _, evicted) | EvictedHere(evicted):
                    assert evicted in [*world.witness.evicted, *crashed], f"{seed}: {fact}"
    assert all(facts[kind] > 5 for kind in OWNERS), facts


@pytest.mark.parametrize("placed", [False, True])
def test_every_kind_of_fault_is_drawn(placed: bool) -> None:
    scenarios = [draw(seed, placed=placed) for seed in range(200)]
    assert {fault.kind for scenario in scenarios for fault in scenario.faults} == set(Kind)
    points = {fault.point for scenario in scenarios for fault in scenario.faults}
    assert points == set(PLACED_POINTS if placed else PLAIN_POINTS)


def test_every_fourth_world_directs_its_keys_in_one_of_all_ways() -> None:
    scenarios = [draw(seed) for seed in range(400)]
    assert [bool(scenario.placement) for scenario in scenarios] == [False, True, False, False] * 100
    assert {scenario.placement for scenario in scenarios} == {None, *WAYS}
    assert any(scenario.away for scenario in scenarios) and any(pin.again for one in scenarios for pin in one.pins)


@pytest.mark.parametrize("world", ["--plain", "--placed"])
def test_a_seed_is_always_the_same_world(world: str) -> None:
    command = [sys.executable, "-m", "simulator", world, "--seed", "17"]
    told = [
        subprocess.run(
            command, env={"PYTHONHASHSEED": salt, **HERE}, capture_output=True, check=True, timeout=60
        ).stdout
        for salt in ("1", "2")
    ]
    assert told[0] == told[1] and b"no promise was broken" in told[0]


def add_to_no_line(self: Gate, entry: Entry) -> bool:
    entry.key = object()
    return add(self, entry)


add = Gate.add


def test_a_failing_seed_shrinks_to_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "add", add_to_no_line)
    _, failure = live_seeds(range(20))
    assert failure is not None
    small = shrink(failure)
    assert small.invariant is failure.invariant
    assert small.scenario.faults == () and len(small.scenario.tasks) == 2
    again = live(small.scenario)
    assert isinstance(again, Failure) and str(again) == str(small)
    assert str(small.invariant) in str(small) and "trace:" in str(small) and str(small.scenario.tasks[0]) in str(small)


def granted_to_all(self: MemoryPlacementStore, incarnation: str, wish: Wish) -> Answer:
    self._book().claims.pop(wish.key, None)
    return answer_wish(self, incarnation, wish)


answer_wish = MemoryPlacementStore._answer


def test_a_failing_seed_of_a_placed_world_shrinks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryPlacementStore, "_answer", granted_to_all)
    _, failure = live_seeds(range(20), partial(draw, placed=True))
    assert failure is not None and failure.invariant is Invariant.TWO_CLAIMS
    small = shrink(failure)
    assert len(small.scenario.tasks) <= 2 and len(small.scenario.pins) <= 2
    assert f"keys are placed by {small.scenario.placement}" in str(small) and "has claimed key" in str(small)


def test_an_error_that_a_part_does_not_know_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: KeyClaims, entry: Entry) -> None:
        raise RuntimeError("it does not know this")

    monkeypatch.setattr(KeyClaims, "prepare", fails)
    _, failure = live_seeds(range(5), partial(draw, placed=True))
    assert failure is not None and failure.invariant is Invariant.ERROR and "it does not know this" in str(failure)


def test_a_fault_that_matters_is_left_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedLease, "trusted", lambda self, keyspace, membership=None: self.until(keyspace) > NEVER)
    _, failure = live_seeds(range(40), lambda seed: replace(draw(seed), losses=0.0, broker_losses=0.0))
    assert failure is not None and failure.invariant is Invariant.TWO_OWNERS
    assert 1 <= len(shrink(failure).scenario.faults) <= 2


def test_a_violation_ends_the_command_with_1() -> None:
    command = [sys.executable, "-c", BROKEN]
    ended = subprocess.run(command, env=HERE, capture_output=True, timeout=60, text=True)
    assert ended.returncode == 1 and "unbalanced-plan" in ended.stdout and "again: make simulate" in ended.stdout


BROKEN = """
from celery_sticky.ownership import changes
from simulator.__main__ import main
changes.plan = lambda view: tuple(min(view.members, default=None) for _ in range(view.slots))
main(["--seeds", "60", "--processes", "2"])
"""


class Finished:
    """A worker that has finished the only task, and a run of it wherever one likes."""

    def __init__(self) -> None:
        self.worker: Any = worker(at=5.0)
        self.witness = Witness(1)
        self.witness.publishes(b"m", 0, "m", waits=False)
        self.run_at(self.worker)

    def run_at(self, process: Any) -> None:
        run: Any = SimpleNamespace(
            process=process, body=b"m", fenced=0, key="k", priority=0, epoch=1, incarnation="i", stands_still=False
        )
        self.witness.begins(run)
        self.witness.ends(run, finished=True)


def worker(at: float) -> Any:
    courier = SimpleNamespace(gave_up=False)
    return SimpleNamespace(failed=False, courier=courier, origin="w.0", world=SimpleNamespace(now=at))


def test_a_finished_task_may_run_elsewhere_if_its_worker_lost_the_slot_with_the_connection_broken() -> None:
    finished = Finished()
    finished.witness.cuts_off(finished.worker, 0, since=4.9)
    finished.run_at(worker(at=20.0))
    with pytest.raises(Violation, match=Invariant.RERUN_WITHOUT_FAULT):
        finished.run_at(worker(at=30.0))  # the second one met no fault


@pytest.mark.parametrize(
    ("slot", "since", "here"),
    [
        pytest.param(0, 4.9, True, id="in the same worker, which remembers"),
        pytest.param(0, 5.1, False, id="though the worker was heard since"),
        pytest.param(1, 4.9, False, id="though it is another slot that was lost"),
    ],
)
def test_a_finished_task_does_not_run_again(slot: int, since: float, here: bool) -> None:
    finished = Finished()
    finished.witness.cuts_off(finished.worker, slot, since)
    with pytest.raises(Violation, match=Invariant.RERUN_WITHOUT_FAULT):
        finished.run_at(finished.worker if here else worker(at=20.0))


# -- A large keyspace --------------------------------------------------------------------------


def test_a_document_of_a_thousand_members_has_less_than_64_kilobytes() -> None:
    crowd = scale.Crowd(16_384)
    crowd.found(1000)
    assert len(crowd.document) < 64 * 1024


def test_a_join_settles_within_five_heartbeats_and_moves_one_share() -> None:
    joined = scale.join(100, 1600)
    assert joined.heartbeats <= 5 and joined.slots_moved == 1600 // 101


def test_workers_that_start_at_once_all_own_their_share_within_three_heartbeats() -> None:
    heartbeats, _ = scale.start_together(50, 500)
    assert heartbeats <= 3


def test_an_idle_worker_asks_the_store_for_one_thing_a_heartbeat() -> None:
    assert scale.idle_commands(50, 500) <= 1
    assert scale.idle_commands(80, 500) <= 1, "they learn all counters with their own heartbeat"


def test_a_world_in_disorder_says_what_is_missing() -> None:
    world = World(draw(3))
    disorder = world.disorder()
    assert disorder is not None and disorder[0] is Invariant.NOT_SETTLED
