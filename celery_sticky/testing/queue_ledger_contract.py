"""The contract of queue drivers, fourth part: the ledger of runs that were claimed and finished."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from celery_sticky.queues.base import Delivery, Disposition, Fetched, Outcome, RunClaim, SlotQueues, Tag, Want
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    HERE,
    NEXT,
    NOW,
    Broker,
    Connect,
    End,
    Publish,
    QueueFixtures,
    ack,
    bodies,
    bury,
    claim,
    defer,
    finishing,
    holds,
    move,
    open_slot,
    settle,
    take,
    tenure,
    unclaim,
    unknown,
)


def holder(fetched: Fetched, delivery: Delivery) -> Tag | None:
    """Return the delivery that holds the claim which this one asked for."""
    return fetched.claims[delivery.tenure.keyspace, delivery.tenure.slot, delivery.tag]


def retried(delivery: Delivery) -> Disposition:
    """Return the disposition of a delivery whose task retries: the next message replaces this one."""
    return defer(delivery, NOW, b"next")


def moved(delivery: Delivery) -> Disposition:
    """Return the disposition of a delivery that goes to another slot."""
    return move(delivery, 8)


ENDS = pytest.mark.parametrize("end", [ack, bury, retried], ids=["ack", "bury", "retry"])
GIVING = pytest.mark.parametrize("give", [unclaim, moved], ids=["unclaim", "move"])


class LedgerContract(QueueFixtures):
    """Runs that are claimed before they start, and that have finished."""

    @pytest.fixture
    def ledger(self, queues: SlotQueues) -> SlotQueues:
        """Return the driver; skip the test if its broker has no ledger."""
        if not queues.guarantees.claims_runs:
            pytest.skip("this broker has no ledger")
        return queues

    def test_a_run_is_claimed_by_one_delivery_and_settles_nothing(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy", b"other")
        first, copy, other = take(ledger, FIRST).deliveries
        told = settle(ledger, claim(first), claim(other, "other/0"))
        assert told.confirmed == [claim(first), claim(other, "other/0")]
        assert (holder(told, first), holder(told, other)) == (first.tag, other.tag)
        assert holder(settle(ledger, claim(copy)), copy) == first.tag
        assert holds(ledger, 7, waiting=0, deferred=0, in_flight=3)

    def test_of_two_claims_in_one_request_the_first_counts(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        told = settle(ledger, claim(first), claim(copy))
        assert (holder(told, first), holder(told, copy)) == (first.tag, first.tag)

    def test_a_claim_whose_answer_was_lost_is_claimed_again(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        (first,) = take(ledger, FIRST).deliveries
        for _ in range(2):
            assert holder(settle(ledger, claim(first)), first) == first.tag

    def test_a_claim_outlives_its_owner(self, ledger: SlotQueues, connect: Connect, publish: Publish) -> None:
        publish(b"1", b"not claimed")
        first, _ = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        other = connect()
        open_slot(other, NEXT)
        again, free = take(other, NEXT).deliveries
        told = settle(other, claim(again), claim(free, "free/0"))
        assert (holder(told, again), holder(told, free)) == (first.tag, free.tag)

    def test_a_former_owner_claims_nothing(self, ledger: SlotQueues, connect: Connect, publish: Publish) -> None:
        """Otherwise a task could start in the former owner while the next owner runs it."""
        publish(b"1")
        (first,) = take(ledger, FIRST).deliveries
        other = connect()
        open_slot(other, NEXT)
        assert settle(ledger, claim(first)).refused == [claim(first)]
        (again,) = take(other, NEXT).deliveries
        assert holder(settle(other, claim(again)), again) == again.tag

    def test_a_delivery_that_is_not_in_flight_claims_nothing(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        first, second = take(ledger, FIRST).deliveries
        nothing = Disposition(Outcome.CLAIM, FIRST, unknown(second), claim=claim(first).claim)
        assert settle(ledger, nothing).refused == [nothing]
        assert holder(settle(ledger, claim(first)), first) == first.tag

    @ENDS
    def test_a_run_that_has_finished_is_known(self, ledger: SlotQueues, publish: Publish, end: End) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        done = finishing(end(first))
        assert settle(ledger, done).confirmed == [done]
        assert holder(settle(ledger, claim(copy)), copy) is None
        assert holder(settle(ledger, claim(copy, "id/1")), copy) == copy.tag

    @ENDS
    def test_an_end_without_a_claim_is_recorded_too(self, ledger: SlotQueues, publish: Publish, end: End) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, finishing(end(first), once=False))
        assert holder(settle(ledger, claim(copy, once=False)), copy) is None

    def test_an_end_that_is_refused_is_not_recorded(
        self, ledger: SlotQueues, connect: Connect, publish: Publish
    ) -> None:
        publish(b"1")
        (first,) = take(ledger, FIRST).deliveries
        open_slot(other := connect(), NEXT)
        late = finishing(ack(first))
        assert settle(ledger, late).refused == [late]
        (again,) = take(other, NEXT).deliveries
        assert holder(settle(other, claim(again)), again) == again.tag

    def test_to_ask_claims_nothing(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        for delivery in (first, copy):
            told = settle(ledger, claim(delivery, once=False))
            assert holder(told, delivery) == delivery.tag

    def test_a_claim_is_given_back_by_its_holder_only(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        assert settle(ledger, unclaim(copy)).confirmed == [unclaim(copy)]
        assert holder(settle(ledger, claim(copy)), copy) == first.tag
        for _ in range(2):
            assert settle(ledger, unclaim(first)).confirmed == [unclaim(first)]
        assert holder(settle(ledger, claim(copy)), copy) == copy.tag
        assert holds(ledger, 7, waiting=0, deferred=0, in_flight=2)

    def test_a_finished_run_is_not_given_back(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first), finishing(ack(first)))
        settle(ledger, unclaim(copy))
        assert holder(settle(ledger, claim(copy)), copy) is None

    def test_a_message_that_moves_gives_its_claim_back(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        settle(ledger, finishing(move(first, 8)))
        assert holder(settle(ledger, claim(copy)), copy) == copy.tag

    @GIVING
    def test_the_claim_of_an_earlier_delivery_is_given_back_too(
        self, ledger: SlotQueues, publish: Publish, give: End
    ) -> None:
        """The connection broke after the claim, and the message came again."""
        publish(b"1", b"its copy")
        first, _ = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        open_slot(ledger, AGAIN)
        again, copy = take(ledger, AGAIN).deliveries
        given = replace(give(again), claim=RunClaim("id/0", True, (unknown(first), first.tag)))
        assert settle(ledger, given).confirmed == [given]
        assert holder(settle(ledger, claim(copy)), copy) == copy.tag

    @GIVING
    def test_the_claim_of_another_message_is_not_given_back(
        self, ledger: SlotQueues, publish: Publish, give: End
    ) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        settle(ledger, replace(give(copy), claim=RunClaim("id/0", True, (unknown(first), unknown(copy)))))
        assert holder(settle(ledger, claim(first)), first) == first.tag
        publish(b"another copy")
        (other,) = take(ledger, FIRST).deliveries
        assert holder(settle(ledger, claim(other)), other) == first.tag

    def test_a_keyspace_has_a_ledger_of_its_own_and_its_slots_share_it(
        self, ledger: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"to another slot")
        first, moving = take(ledger, FIRST).deliveries
        settle(ledger, claim(first), move(moving, 8))
        other = tenure(slot=8)
        open_slot(ledger, other)
        (moved,) = take(ledger, other).deliveries
        assert holder(settle(ledger, claim(moved)), moved) == first.tag
        ledger.trim_ledger("elsewhere", before=NOW + 1)
        assert holder(settle(ledger, claim(moved)), moved) == first.tag

    def test_copies_that_one_request_fetched_from_two_slots_are_two_deliveries(
        self, ledger: SlotQueues, publish: Publish, broker: Broker
    ) -> None:
        other = tenure(slot=8)
        open_slot(ledger, other)
        publish(b"1")
        broker.publish("default", 8, b"its copy")
        first, copy = ledger.fetch([Want(FIRST, 1), Want(other, 1)], [], NOW).deliveries
        told = settle(ledger, claim(first), claim(copy))
        assert first.tag != copy.tag
        assert holder(told, first) == holder(told, copy) == first.tag

    def test_requeue_forgets_the_run(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy")
        first, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first))
        settle(ledger, finishing(bury(first, json.dumps({"run": "id/0"}))))
        assert holder(settle(ledger, claim(copy)), copy) is None
        (dead,) = ledger.dead("default")
        assert ledger.requeue("default", dead.id)
        fetched = take(ledger, FIRST)
        assert bodies(fetched) == [b"1"]
        (again,) = fetched.deliveries
        assert holder(settle(ledger, claim(again)), again) == again.tag

    def test_a_run_can_be_forgotten(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"done", b"copy")
        first, done, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(first), finishing(ack(done), "done/0"))
        for run in ("id/0", "done/0", "unknown/0"):
            ledger.forget_run("default", run)
            assert holder(settle(ledger, claim(copy, run)), copy) == copy.tag

    def test_finished_runs_are_forgotten_after_a_time_and_open_claims_never(
        self, ledger: SlotQueues, publish: Publish
    ) -> None:
        publish(b"old", b"new", b"open", b"copy")
        old, new, held, copy = take(ledger, FIRST).deliveries
        settle(ledger, claim(old, "old/0"), claim(held, "open/0"))
        ledger.fetch([], [finishing(ack(old), "old/0")], NOW - 10)
        settle(ledger, finishing(ack(new), "new/0", once=False))
        assert ledger.trim_ledger("default", before=NOW - 5) == 1
        assert ledger.trim_ledger("default", before=NOW - 5) == 0
        assert holder(settle(ledger, claim(copy, "new/0")), copy) is None
        assert holder(settle(ledger, claim(copy, "open/0")), copy) == held.tag
        assert holder(settle(ledger, claim(copy, "old/0")), copy) == copy.tag

    @pytest.mark.parametrize("run", ["", "a:b\0\r\n%s {} '\\", "\xfc/0", "\ud800/0", "x" * 255, "x" * 5000])
    def test_a_run_is_named_by_any_text(self, ledger: SlotQueues, publish: Publish, run: str) -> None:
        """Senders may choose the ids of tasks. Similar texts are different runs."""
        similar = [f"{run}1", f"{run} ", f"{run}A", f"{run}a"]
        publish(*(b"%d" % n for n in range(6)))
        first, copy, *others = take(ledger, FIRST).deliveries
        told = settle(ledger, claim(first, run), *map(claim, others, similar))
        assert [holder(told, one) for one in (first, *others)] == [first.tag, *(one.tag for one in others)]
        assert holder(settle(ledger, claim(copy, run)), copy) == first.tag
        settle(ledger, finishing(bury(first, json.dumps({"run": run})), run))
        assert holder(settle(ledger, claim(copy, run)), copy) is None
        (dead,) = ledger.dead("default")
        assert ledger.requeue("default", dead.id)
        assert holder(settle(ledger, claim(copy, run)), copy) == (copy.tag if run else None)

    def test_what_one_request_says_of_a_run_counts_in_order(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"its copy", b"another")
        first, copy, other = take(ledger, FIRST).deliveries
        told = settle(ledger, claim(first), unclaim(first), claim(copy), finishing(ack(copy)), claim(other))
        assert [holder(told, one) for one in (first, copy, other)] == [first.tag, copy.tag, None]

    def test_many_claims_fit_into_one_request(self, ledger: SlotQueues, publish: Publish) -> None:
        publish(*(b"%d" % n for n in range(300)))
        deliveries = [one for _ in range(10) for one in take(ledger, FIRST, limit=64).deliveries]
        assert len(deliveries) == 300
        told = settle(ledger, *(claim(one, f"{n}/0") for n, one in enumerate(deliveries)))
        assert all(holder(told, one) == one.tag for one in deliveries)
        settle(ledger, *(finishing(ack(one), f"{n}/0") for n, one in enumerate(deliveries)))
        while ledger.trim_ledger("default", before=NOW + 1):
            pass
        assert holds(ledger, *HERE[1:], waiting=0, deferred=0, in_flight=0)
