"""The contract of queue drivers, third part: suspects and counted starts."""

from __future__ import annotations

import pytest

from celery_sticky.queues.base import Disposition, Outcome, SlotQueues
from celery_sticky.testing.queue_steps import (
    FIRST,
    NEXT,
    NOW,
    End,
    Publish,
    QueueFixtures,
    ack,
    attempts,
    bury,
    defer,
    mark,
    open_slot,
    settle,
    take,
    tenure,
    unknown,
    unmark,
)


class StartsContract(QueueFixtures):
    """Suspects and counted starts."""

    @pytest.fixture
    def starts(self, queues: SlotQueues) -> SlotQueues:
        """Return the driver; skip the test if its broker counts no starts."""
        if not queues.guarantees.counts_starts:
            pytest.skip("this broker counts no starts")
        return queues

    def test_what_goes_back_from_the_same_incarnation_needs_no_mark(self, starts: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        take(starts, FIRST)
        open_slot(starts, tenure(epoch=9, count=1))
        assert attempts(take(starts, tenure(epoch=9, count=1))) == {b"1": None}

    def test_only_what_goes_back_from_another_incarnation_is_suspect(
        self, starts: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"kept", b"waited")
        kept = take(starts, FIRST, limit=2).deliveries[1]
        open_slot(starts, NEXT, [kept.tag])
        assert attempts(take(starts, NEXT)) == {b"1": 0, b"waited": None}
        open_slot(starts, tenure(epoch=6, incarnation="bob", count=2))
        again = attempts(take(starts, tenure(epoch=6, incarnation="bob", count=2)))
        assert again == {b"1": 0, b"kept": None, b"waited": None}

    def test_a_mark_counts_starts_and_outlives_every_owner(self, starts: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        take(starts, FIRST)
        for epoch in (6, 7, 8):
            now = tenure(epoch=epoch, incarnation=f"w{epoch}")
            open_slot(starts, now)
            first, second = take(starts, now).deliveries
            assert (first.attempts, second.attempts) == (epoch - 6, 0)
            noted = settle(starts, mark(first, epoch - 5))
            assert noted.counted_starts == {("default", 7, first.tag): epoch - 5}
            assert noted.confirmed == [mark(first, epoch - 5)]
        assert settle(starts, mark(first, 4)).counted_starts == {("default", 7, first.tag): 4}
        assert settle(starts, ack(first)).confirmed == [ack(first)]

    def test_a_mark_is_taken_back_and_the_message_stays_in_flight(self, starts: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        take(starts, FIRST)
        open_slot(starts, NEXT)
        (suspect,) = take(starts, NEXT).deliveries
        settle(starts, mark(suspect))
        for _ in range(2):  # it never falls below zero
            assert settle(starts, unmark(suspect)).confirmed == [unmark(suspect)]
        assert starts.depths([("default", 7)])["default", 7].in_flight == 1
        assert settle(starts, mark(suspect)).counted_starts == {("default", 7, suspect.tag): 1}
        nothing = Disposition(Outcome.UNCOUNT_START, NEXT, unknown(suspect), starts=1)
        assert settle(starts, nothing).refused == [nothing]

    def test_a_mark_or_its_taking_back_that_is_said_twice_counts_once(
        self, starts: SlotQueues, publish: Publish
    ) -> None:
        """The answer may have been lost: the repeated request must not bring a message nearer to its burial."""
        publish(b"1")
        take(starts, FIRST)
        open_slot(starts, NEXT)
        (suspect,) = take(starts, NEXT).deliveries
        for number in (1, 1, 2, 2, 1):
            settle(starts, mark(suspect, number))
        assert settle(starts, mark(suspect, 2)).counted_starts == {("default", 7, suspect.tag): 2}
        for _ in range(2):
            settle(starts, unmark(suspect, 2))
        open_slot(starts, tenure(epoch=7, incarnation="cat"))
        assert attempts(take(starts, tenure(epoch=7, incarnation="cat"))) == {b"1": 1}

    def test_a_mark_under_a_former_tenure_or_of_no_delivery_is_refused(
        self, starts: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1")
        (delivery,) = take(starts, FIRST).deliveries
        nothing = Disposition(Outcome.COUNT_START, FIRST, unknown(delivery), starts=1)
        assert settle(starts, nothing).refused == [nothing]
        open_slot(starts, NEXT)
        assert settle(starts, mark(delivery)).refused == [mark(delivery)]
        assert attempts(take(starts, NEXT)) == {b"1": 0}

    @pytest.mark.parametrize("end", [ack, lambda d: defer(d, NOW), bury], ids=["ack", "defer", "bury"])
    def test_a_settled_suspect_is_forgotten(self, starts: SlotQueues, publish: Publish, end: End) -> None:
        publish(b"1", b"other")
        take(starts, FIRST)
        open_slot(starts, NEXT)
        suspect = take(starts, NEXT).deliveries[0]
        settle(starts, mark(suspect))
        settle(starts, end(suspect))
        for dead in starts.dead("default"):
            starts.requeue("default", dead.id)
        if end is ack:
            publish(b"1")
        assert attempts(take(starts, NEXT)) == {b"1": None}
