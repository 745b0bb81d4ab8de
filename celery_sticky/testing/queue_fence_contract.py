"""The contract of queue drivers, first part: fetching, fencing, recovery in order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from celery_sticky.errors import Fenced, SlotHeld
from celery_sticky.queues.base import Disposition, Fetched, Opening, Outcome, SlotQueues, Tenure, Want
from celery_sticky.queues.guarantees import FULL, Fence, Order
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    HERE,
    NEXT,
    NOW,
    ODD,
    Broker,
    Connect,
    Publish,
    QueueFixtures,
    ack,
    bodies,
    defer,
    open_slot,
    settle,
    take,
    take_all,
    tenure,
    unknown,
)


class FenceContract(QueueFixtures):
    """Fetch, open, suspects."""

    def test_messages_come_in_the_order_in_which_the_broker_took_them(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"2", b"3")
        assert bodies(take(queues, FIRST, limit=2)) == [b"1", b"2"]
        publish(b"4")
        assert bodies(take(queues, FIRST)) == [b"3", b"4"]

    def test_more_urgent_priorities_come_first_each_rounded_down_to_its_step(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        for priority in range(9, -1, -1):
            publish(b"%d" % priority, priority=priority)
        steps = queues.guarantees.priorities
        expected = {n: max(step for step in steps if step <= n) for n in range(9, -1, -1)}
        brought = take(queues, FIRST).deliveries
        assert [(d.priority, int(d.body)) for d in brought] == [
            (step, n) for step in steps for n in expected if expected[n] == step
        ]

    def test_a_limit_spans_priorities(self, queues: SlotQueues, publish: Publish) -> None:
        _needs_priorities(queues)
        publish(b"late", priority=9)
        publish(b"1", b"2")
        assert bodies(take(queues, FIRST, limit=3)) == [b"1", b"2", b"late"]

    def test_a_limit_of_zero_brings_nothing(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        assert take(queues, FIRST, limit=0).deliveries == []
        assert bodies(take(queues, FIRST)) == [b"1"]

    def test_nothing_asked_is_nothing_answered(self, queues: SlotQueues) -> None:
        assert queues.fetch([], [], NOW) == Fetched()

    def test_a_body_comes_as_it_was_published(self, queues: SlotQueues, publish: Publish, connect: Connect) -> None:
        priority = queues.guarantees.priorities[-1]
        publish(ODD, priority=priority)
        assert bodies(take(queues, FIRST)) == [ODD]
        open_slot(queues, AGAIN)
        (delivery,) = take(queues, AGAIN).deliveries
        assert (delivery.body, delivery.priority, delivery.tenure) == (ODD, priority, AGAIN)
        settle(queues, defer(delivery, NOW))
        assert bodies(take(queues, AGAIN)) == [ODD]

    def test_more_messages_than_one_chunk_of_any_script_come_whole_and_in_order(
        self, queues: SlotQueues, publish: Publish, connect: Connect
    ) -> None:
        expected = [b"%d" % i for i in range(1300)]
        publish(*expected)
        assert bodies(take_all(queues, FIRST)) == expected
        open_slot(queues, AGAIN)
        brought = take_all(queues, AGAIN)
        assert bodies(brought) == expected
        settle(queues, *[defer(d, NOW + 1) for d in brought.deliveries])
        assert bodies(take_all(queues, AGAIN, now=NOW + 2)) == expected

    def test_delivery_tags_grow_for_ever(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        old = [d.tag for d in take(queues, FIRST).deliveries]
        open_slot(queues, NEXT)
        new = [d.tag for d in take(queues, NEXT).deliveries]
        assert old[0] < old[1] < new[0] < new[1]

    def test_slots_and_keyspaces_do_not_mix_in_one_round_trip(self, queues: SlotQueues, broker: Broker) -> None:
        others = [tenure(), tenure(slot=70), tenure(keyspace="orders")]
        for other in others:
            if other != FIRST:
                open_slot(queues, other)
            broker.publish(other.keyspace, other.slot, f"{other.keyspace} {other.slot}".encode())
        brought = queues.fetch([Want(other, 5) for other in others], [], NOW)
        assert [(d.tenure, d.body) for d in brought.deliveries] == [
            (other, f"{other.keyspace} {other.slot}".encode()) for other in others
        ]
        assert queues.fetch([], [ack(d) for d in brought.deliveries], NOW).refused == []
        assert brought.drained == {(other.keyspace, other.slot) for other in others}

    def test_a_slot_is_drained_exactly_when_its_queue_is_empty(self, queues: SlotQueues, publish: Publish) -> None:
        assert take(queues, FIRST).drained == {HERE}
        publish(b"1", b"2")
        assert take(queues, FIRST, limit=1).drained == set()
        assert take(queues, FIRST, limit=1).drained == {HERE}
        publish(b"3", priority=9)
        assert take(queues, FIRST, limit=0).drained == set()

    @pytest.mark.parametrize(
        "other", [tenure(epoch=4), tenure(epoch=6), tenure(incarnation="bob"), tenure(count=2), AGAIN]
    )
    def test_a_slot_fenced_for_another_tenure_is_lost_and_brings_nothing(
        self, queues: SlotQueues, publish: Publish, other: Tenure
    ) -> None:
        publish(b"1")
        brought = take(queues, other)
        assert (brought.lost, brought.deliveries, brought.drained) == ({HERE}, [], set())
        assert bodies(take(queues, FIRST)) == [b"1"]

    def test_a_slot_that_was_never_opened_is_lost(self, queues: SlotQueues, broker: Broker) -> None:
        broker.publish("default", 8, b"1")
        assert take(queues, tenure(slot=8)).lost == {("default", 8)}

    @pytest.mark.parametrize(
        "late",
        [
            pytest.param(tenure(epoch=4, count=9), id="lower epoch"),
            pytest.param(tenure(incarnation="bob", count=9), id="another incarnation"),
            pytest.param(tenure(count=3), id="same open count"),
            pytest.param(tenure(count=2), id="lower open count"),
        ],
    )
    def test_open_is_refused_and_changes_nothing(
        self, queues: SlotQueues, publish: Publish, connect: Connect, late: Tenure
    ) -> None:
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        if queues.guarantees.fence is Fence.EPOCH:
            with pytest.raises(Fenced) as refusal:
                open_slot(connect(), late)
            assert (refusal.value.epoch, refusal.value.incarnation) == (5, "ann")
        else:
            with pytest.raises(SlotHeld):
                open_slot(connect(), late)
        assert settle(queues, ack(delivery)).confirmed == [ack(delivery)]

    @pytest.mark.parametrize("later", [AGAIN, NEXT, tenure(epoch=6, count=0), tenure(epoch=10)])
    def test_open_sets_the_fence_to_exactly_this_tenure(
        self, queues: SlotQueues, publish: Publish, later: Tenure
    ) -> None:
        open_slot(queues, later)
        publish(b"1")
        assert take(queues, FIRST).lost == {HERE}
        assert bodies(take(queues, later)) == [b"1"]

    def test_many_slots_open_in_one_request_and_each_has_an_answer_of_its_own(
        self, queues: SlotQueues, publish: Publish, broker: Broker, connect: Connect
    ) -> None:
        publish(b"1", b"2")
        first, _ = take(queues, FIRST).deliveries
        others, another = [tenure(slot=slot) for slot in range(100, 200)], connect()
        for slot in range(100, 200):
            broker.publish("default", slot, b"%d" % slot)
        openings = [Opening(tenure(epoch=4)), *(Opening(other) for other in others)]
        refused, *answers = another.open(openings)
        assert isinstance(refused, Fenced | SlotHeld)
        assert [list(answer) for answer in answers if not isinstance(answer, Exception)] == [[]] * 100
        brought = another.fetch([Want(other, 1) for other in others], [], NOW)
        assert bodies(brought) == [b"%d" % slot for slot in range(100, 200)]
        kept, again = queues.open([Opening(AGAIN, (first.tag,)), Opening(tenure(slot=100))])
        assert not isinstance(kept, Exception) and list(kept) == [first.tag]
        assert isinstance(again, Fenced | SlotHeld), "the other connection has opened it under this tenure"
        assert queues.open([]) == []

    def test_a_slot_that_was_given_back_is_opened_by_another_connection(
        self, queues: SlotQueues, publish: Publish, connect: Connect
    ) -> None:
        publish(b"1", b"2", b"3")
        first, *_ = take(queues, FIRST).deliveries
        queues.release([tenure(epoch=4)])  # another tenure: no effect
        assert settle(queues, ack(first)).confirmed == [ack(first)]
        queues.release([FIRST])
        other = connect()
        open_slot(other, NEXT)
        assert bodies(take(other, NEXT)) == [b"2", b"3"]
        assert take(queues, FIRST).lost == {HERE}

    def test_a_connection_that_ended_holds_nothing(
        self, queues: SlotQueues, publish: Publish, connect: Connect
    ) -> None:
        publish(b"1", b"2", b"3")
        first, *_ = take(queues, FIRST).deliveries
        settle(queues, ack(first))
        queues.close()
        other = connect()
        open_slot(other, NEXT)
        assert bodies(take(other, NEXT)) == [b"2", b"3"]

    def test_what_is_in_flight_goes_back_to_the_front_in_its_original_order(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(*[b"%d" % i for i in range(12)])
        take(queues, FIRST, limit=5)
        take(queues, FIRST, limit=6)
        publish(b"new")
        open_slot(queues, NEXT)
        assert bodies(take(queues, NEXT)) == [*(b"%d" % i for i in range(12)), b"new"]

    def test_a_message_goes_back_to_the_priority_it_came_from(self, queues: SlotQueues, publish: Publish) -> None:
        _needs_priorities(queues)
        for priority in (9, 3, 0, 6):
            publish(b"%d a" % priority, b"%d b" % priority, priority=priority)
        take(queues, FIRST, limit=5)
        publish(b"0 c")
        publish(b"3 c", priority=3)
        open_slot(queues, NEXT)
        brought = take(queues, NEXT).deliveries
        assert [d.body for d in brought] == b"0 a,0 b,0 c,3 a,3 b,3 c,6 a,6 b,9 a,9 b".split(b",")
        assert all(d.body.startswith(b"%d " % d.priority) for d in brought)

    def test_kept_deliveries_stay_in_flight_and_are_settled_under_the_new_tenure(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"2", b"3")
        first, second, _ = take(queues, FIRST).deliveries
        assert list(open_slot(queues, AGAIN, [second.tag])) == [second.tag]
        assert bodies(take(queues, AGAIN)) == [b"1", b"3"]
        assert settle(queues, ack(second)).confirmed == []
        assert settle(queues, ack(second, AGAIN)).confirmed == [ack(second, AGAIN)]
        assert settle(queues, ack(first, AGAIN)).confirmed == []

    def test_an_opening_tells_which_of_the_kept_deliveries_it_found(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2", b"3")
        first, second, third = take(queues, FIRST).deliveries
        settle(queues, ack(first))
        keep = [first.tag, second.tag, third.tag, unknown(third)]
        assert sorted(open_slot(queues, AGAIN, keep)) == [second.tag, third.tag]
        assert not open_slot(queues, NEXT), "there was nothing to keep"

    def test_a_tag_names_the_delivery_of_one_opening_and_no_other(self, queues: SlotQueues, publish: Publish) -> None:
        """A broker that lost its newest data reuses numbers: the request in a tag tells such deliveries apart."""
        publish(b"1", b"2")
        first, _ = take(queues, FIRST).deliveries
        open_slot(queues, AGAIN)
        brought = take(queues, AGAIN).deliveries
        twin = replace(brought[0].tag, trip=first.tag.trip)
        assert twin.number == brought[0].tag.number and twin != brought[0].tag
        assert not open_slot(queues, NEXT, [twin]), "it is not that delivery"
        assert settle(queues, Disposition(Outcome.ACK, NEXT, twin)).confirmed == []
        assert bodies(take(queues, NEXT)) == [b"1", b"2"]

    def test_no_two_requests_of_one_opening_fetch_under_the_same_name(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        """The lost data may be of the same opening, and the answer to a later request may be lost."""
        publish(b"1", b"2")
        (first,) = take(queues, FIRST, limit=1).deliveries
        (second,) = take(queues, FIRST, limit=1).deliveries
        twin = replace(first.tag, number=second.tag.number)
        assert twin != second.tag
        assert not open_slot(queues, AGAIN, [twin]), "it is not that delivery"
        assert bodies(take(queues, AGAIN)) == [b"1", b"2"]

    def test_a_kept_delivery_that_goes_back_later_takes_its_original_place(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"2", b"3")
        kept = take(queues, FIRST).deliveries[1]
        open_slot(queues, AGAIN, [kept.tag])
        take(queues, AGAIN, limit=1)
        open_slot(queues, NEXT)
        # The kept message was fetched before the second fetch of the first one.
        by_fetch = queues.guarantees.returns is Order.FETCH
        assert bodies(take(queues, NEXT)) == ([b"2", b"1", b"3"] if by_fetch else [b"1", b"2", b"3"])


def _needs_priorities(queues: SlotQueues) -> None:
    if queues.guarantees.priorities != FULL.priorities:
        pytest.skip("this broker has other priorities, or none")
