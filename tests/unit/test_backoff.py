"""Messages that wait for another try: in their place, longer each time, and nobody else with them."""

from __future__ import annotations

import pytest

from celery_sticky.delivery.backoff import LAST, Backoff, pause
from celery_sticky.delivery.gate import Entry, Gate, Stage
from celery_sticky.delivery.state import Item
from celery_sticky.envelope import Envelope

pytestmark = pytest.mark.unit
SLOT = ("ks", 1)
NOW = 1000.0


def entry(tag: int, key: str) -> Entry:
    return Entry(SLOT, tag, key, Item(None, Envelope({"task": "t", "id": str(tag)}, {}, "", "", b"")))  # type: ignore[arg-type]


@pytest.fixture
def gate() -> Gate:
    gate = Gate()
    gate.open(SLOT)
    return gate


def test_waits_double_up_to_a_limit() -> None:
    assert [pause(times) for times in (0, 1, 2, 3)] == [0.0, 0.25, 0.5, 1.0]
    assert pause(8) == pause(10**9) == LAST


def test_who_rests_keeps_its_place_and_its_key_and_nobody_else(gate: Gate) -> None:
    first, second, other = entry(1, "a"), entry(2, "a"), entry(3, "b")
    for one in (first, second, other):
        gate.add(one)
    assert gate.take(9) == [first, other]
    assert gate.rest(first, first.turn)
    assert gate.start(other, other.turn, trusted=True) and gate.end(other)
    gate.settled(other)
    assert gate.take(9) == [] and (gate.out, gate.runnable, gate.waiting) == (0, 0, 2)
    gate.rouse(first)
    assert gate.take(9) == [first] and second.stage is Stage.WAITING


def test_who_had_started_rests_in_its_place_too(gate: Gate) -> None:
    first, second = entry(1, "a"), entry(2, "a")
    gate.add(first), gate.add(second)
    gate.take(9)
    assert gate.start(first, first.turn, trusted=True) and gate.rest(first, first.turn)
    assert gate.take(9) == [] and gate.kept(SLOT) == ()
    gate.rouse(first)
    assert gate.take(9) == [first]


def test_who_rests_goes_with_its_slot(gate: Gate) -> None:
    first = entry(1, "a")
    gate.add(first)
    gate.take(9)
    gate.rest(first, first.turn)
    assert gate.lose(SLOT)
    gate.rouse(first)
    assert gate.keys == gate.waiting == gate.runnable == gate.out == 0


def test_a_claim_and_a_rest_are_both_waited_for(gate: Gate) -> None:
    first = entry(1, "a")
    gate.add(first)
    gate.take(9)
    first.pending = True
    gate.rest(first, first.turn)
    gate.clear(first, 1)
    assert gate.take(9) == []
    gate.rouse(first)
    assert gate.take(9) == [first]


def test_the_first_requeue_is_answered_at_once_and_failures_have_a_counter_of_their_own() -> None:
    backoff, one, two = Backoff(), entry(1, "a"), entry(2, "b")
    backoff.note_requeue(one, "Reject", NOW)
    backoff.note_failure(two, "OSError", NOW)
    assert list(backoff.due(NOW)) == [one] and backoff.next_due == NOW + 0.25
    assert list(backoff.due(NOW + 0.25)) == [two] and backoff.next_due is None
    backoff.note_requeue(one, "Reject", NOW)
    assert backoff.next_due == NOW + 0.25
    assert (one.requeues, one.failures, two.failures, one.attempts) == (2, 0, 1, None)


def test_a_clock_that_was_set_back_keeps_nobody_waiting() -> None:
    backoff, one = Backoff(), entry(1, "a")
    backoff.note_failure(one, "OSError", NOW)
    assert list(backoff.due(NOW - 3600)) == [one]
