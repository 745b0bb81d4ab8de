"""Worlds whose broker knows no epochs: connections hold its slots. Then each rule for such brokers, taken away."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.run import live_seeds
from simulator.scenario import draw
from simulator.shrink import Failure, shrink

from celery_sticky.delivery.gate import Gate
from celery_sticky.delivery.outbox import Outbox
from celery_sticky.delivery.slots import SlotLifecycle
from celery_sticky.keys import SlotId
from celery_sticky.ownership.events import Drained
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.memory_held import HeldQueues

SEEDS, BATCH = 200, 50
held_rule = partial(rule, held=True)
LIVELY = {Invariant.NOT_SETTLED, Invariant.NOT_OWNED, Invariant.NOT_DRAINED}
"""What breaks if the world never comes into order. An error, if a part asks the same again for ever."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_whatever_happens_no_promise_is_broken(first: int) -> None:
    totals, failure = live_seeds(range(first, first + BATCH), partial(draw, held=True))
    assert failure is None, str(shrink(failure)) if isinstance(failure, Failure) else ""
    assert totals.seeds == BATCH and totals.faults > BATCH and totals.runs > totals.tasks > 5 * BATCH


def given_back_unsaid(self: SlotLifecycle, slot: SlotId, tenure: Tenure | None, *, drained: bool) -> None:
    if drained:
        self._report(slot[0], Drained(slot[1]))


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def no(*_: Any) -> bool:
    return False


RULES = [
    held_rule("a slot is given back", SlotLifecycle, "_give_back", given_back_unsaid, breaks=LIVELY),
    held_rule("a connection that ended holds nothing", HeldQueues, "close", nothing, breaks=LIVELY),
    held_rule(
        "answers that come late are collected", Outbox, "unanswered", property(no), breaks={*LIVELY, Invariant.ERROR}
    ),
]
PLACED_RULES = [
    held_rule(
        "no message is passed on while an earlier delivery of it may run",
        Gate,
        "is_behind_adrift",
        no,
        breaks={Invariant.RERUN_WITHOUT_FAULT},
        first=1440,
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
