"""Worlds with tasks that run at most once, or are deduplicated. Then each rule of the ledger, taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.ledger_scenario import Delivery
from simulator.pool import SimulatedRun
from simulator.run import live_seeds
from simulator.scenario import Kind, draw
from simulator.shrink import Failure, shrink

from celery_sticky.delivery import state
from celery_sticky.delivery.gate import Entry, Gate
from celery_sticky.delivery.message_memory import MessageMemory
from celery_sticky.delivery.run_claims import Grant, RunClaims
from celery_sticky.delivery.state import DeliveryState, End
from celery_sticky.queues.base import Outcome, RunClaim, Tag
from celery_sticky.queues.memory_ledger import Ledger

SEEDS, PLACED_SEEDS, BATCH = 200, 50, 50
once_rule = partial(rule, once=True)

claim, take, concerns_ledger, note_starts = (
    Ledger.claim,
    RunClaims.take,
    state._concerns_ledger,
    MessageMemory.note_starts,
)


@pytest.mark.parametrize(
    ("first", "placed"), [*((first, False) for first in range(0, SEEDS, BATCH)), (SEEDS, True)], ids=str
)
def test_whatever_happens_no_promise_is_broken(first: int, placed: bool) -> None:
    totals, failure = live_seeds(range(first, first + BATCH), partial(draw, placed=placed, once=True))
    assert failure is None, str(shrink(failure)) if isinstance(failure, Failure) else ""
    assert totals.seeds == BATCH and totals.faults > BATCH and totals.runs > 5 * BATCH


def test_a_seed_is_the_same_world_but_for_its_ledger() -> None:
    for seed in range(40):
        plain, once = draw(seed, placed=False), draw(seed, placed=False, once=True)
        faults = tuple(fault for fault in plain.faults if fault.kind is not Kind.BROKER_BACK)
        tasks = tuple(replace(task, delivery=Delivery.PLAIN, copies=(), identical=False) for task in once.tasks)
        assert replace(once, tasks=tasks, claim_ahead=None) == replace(plain, faults=faults)


def test_tasks_of_one_key_are_mixed_and_some_are_published_twice() -> None:
    scenarios = [draw(seed, once=True) for seed in range(20)]
    tasks = [task for scenario in scenarios for task in scenario.tasks]
    assert {task.delivery for task in tasks} == set(Delivery)
    assert any({one.delivery for one in scenarios[0].tasks if one.key == key} == set(Delivery) for key in range(8))
    assert {len(task.copies) for task in tasks} == {0, 1, 2}
    assert all(1 <= (one.claim_ahead or 0) <= one.concurrency for one in scenarios)


# -- A worker without … ------------------------------------------------------------------------


def no(*_: Any) -> bool:
    return False


def nothing(*_: Any) -> tuple[()]:
    return ()


def granted_to_all(self: DeliveryState, entry: Entry, holder: Tag | None, now: float) -> None:
    if entry.unstarted and entry.grant is Grant.ASKED:
        self.gate.granted(entry)


def granted_and_left(self: Gate, entry: Entry) -> None:
    entry.grant = Grant.HELD


def as_many_as_come(self: RunClaims, most: int) -> Iterator[Entry]:
    return take(self, 1000)


def silent(outcome: Outcome, entry: Entry, end: End) -> bool:
    return end.outcome is not outcome and concerns_ledger(entry, end)


def without_claimants(self: MessageMemory, identity: bytes, entry: Entry, epoch: int) -> None:
    note_starts(self, identity, entry, epoch)
    self._starts[identity] = self._starts[identity]._replace(claimants=())


# -- A ledger without … ------------------------------------------------------------------------


def finished_unrecorded(self: Ledger, claim: RunClaim, now: float) -> None:
    self.claimed.pop(claim.run, None)


def known_of_all(self: Ledger, claim: RunClaim, tag: Tag) -> None:
    """Say of each run that it has finished."""


def claimed_is_finished(self: Ledger, asked: RunClaim, tag: Tag) -> Tag | None:
    holder = claim(self, asked, tag)
    return holder if holder == tag else None


def given_to_all(self: Ledger, claim: RunClaim, tag: Tag) -> Tag | None:
    if claim.run in self.finished:
        return None
    self.claimed[claim.run] = tag
    return tag


def given_back_by_its_own_tag(self: Ledger, claim: RunClaim, tag: Tag) -> None:
    if self.claimed.get(claim.run) == tag:
        del self.claimed[claim.run]


TWICE = {Invariant.RUN_TWICE, Invariant.RUN_AFTER_FINISHED}
RULES = [
    once_rule(
        "a run starts when it is claimed", RunClaims, "needs", staticmethod(no), breaks={Invariant.RUN_NOT_CLAIMED}
    ),
    once_rule(
        "a run that may have begun is abandoned when its process dies",
        SimulatedRun,
        "once",
        False,
        breaks={Invariant.RUN_TWICE},
    ),
    once_rule(
        "a run that another delivery has claimed does not start",
        DeliveryState,
        "_on_claimed",
        granted_to_all,
        breaks={Invariant.RUN_TWICE, Invariant.RUN_NOT_CLAIMED},
    ),
    once_rule("a run has one claim", Ledger, "claim", given_to_all, breaks={Invariant.RUN_TWICE}),
    once_rule("a run that has finished is recorded", Ledger, "finish", finished_unrecorded, breaks=TWICE),
    once_rule(
        "the end of a task finishes its run",
        state,
        "_concerns_ledger",
        partial(silent, Outcome.ACK),
        breaks={*TWICE, Invariant.OPEN_CLAIM},
    ),
    once_rule(
        "a retry finishes the run before it",
        state,
        "_concerns_ledger",
        partial(silent, Outcome.DEFER),
        breaks={*TWICE, Invariant.OPEN_CLAIM},
    ),
    once_rule(
        "a run that is buried is finished",
        state,
        "_concerns_ledger",
        partial(silent, Outcome.BURY),
        breaks={*TWICE, Invariant.OPEN_CLAIM},
    ),
    once_rule("a slot that is given away has no claims", Gate, "claimed", nothing, breaks={Invariant.FALSE_ALARM}),
    once_rule(
        "a claim from before a new connection is given back",
        Ledger,
        "give_back",
        given_back_by_its_own_tag,
        breaks={Invariant.FALSE_ALARM},
        first=771300199,
    ),
    once_rule(
        "a worker knows its claims over a new connection",
        MessageMemory,
        "note_starts",
        without_claimants,
        breaks={Invariant.FALSE_ALARM},
        first=34,
    ),
    once_rule(
        "few runs are claimed ahead",
        RunClaims,
        "take",
        as_many_as_come,
        breaks={Invariant.MANY_LOST},
        first=96,
    ),
    once_rule(
        "a run that is claimed has not finished",
        Ledger,
        "claim",
        claimed_is_finished,
        breaks={Invariant.NO_END},
    ),
    once_rule("only copies are discarded", Ledger, "claim", known_of_all, breaks={Invariant.DISCARDED_ORIGINAL}),
    once_rule("what is claimed starts", Gate, "granted", granted_and_left, breaks={Invariant.NOT_DRAINED}),
]
PLACED_RULES = [
    once_rule(
        "a message that is passed on takes no claim with it",
        state,
        "_concerns_ledger",
        partial(silent, Outcome.MOVE),
        breaks={Invariant.FALSE_ALARM},
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_the_rule_its_promise_is_broken(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_without(rule, monkeypatch, placed=False)


@pytest.mark.parametrize("rule", PLACED_RULES, ids=str)
def test_without_the_rule_of_placed_keyspaces_its_promise_is_broken(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_without(rule, monkeypatch, placed=True)
