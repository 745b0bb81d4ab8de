"""The contract of queue drivers, second part: settling, deferring, burying, waiting."""

from __future__ import annotations

import threading

import pytest

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import SlotQueues, Want
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    HERE,
    LONG,
    NEXT,
    NOW,
    ODD,
    SOON,
    Broker,
    Connect,
    End,
    Publish,
    QueueFixtures,
    ack,
    bodies,
    bury,
    defer,
    holds,
    move,
    open_slot,
    settle,
    take,
    tenure,
)


class SettleContract(QueueFixtures):
    """Settle, defer, dead, idle."""

    def test_an_acked_message_never_comes_back(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        first, _ = take(queues, FIRST).deliveries
        assert take(queues, FIRST, ack(first)).confirmed == [ack(first)]
        open_slot(queues, NEXT)
        assert bodies(take(queues, NEXT)) == [b"2"]

    @pytest.mark.parametrize("end", [ack, lambda d: defer(d, NOW, b"x"), bury], ids=["ack", "defer", "bury"])
    def test_a_disposition_of_a_former_tenure_is_refused_and_nothing_happens(
        self, queues: SlotQueues, publish: Publish, end: End
    ) -> None:
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        open_slot(queues, NEXT, [delivery.tag])
        answer = take(queues, NEXT, end(delivery))
        assert (answer.refused, answer.confirmed, answer.deliveries) == ([end(delivery)], [], [])
        assert (answer.due, queues.dead("default")) == ({}, [])
        assert holds(queues, 7, waiting=0, deferred=0, in_flight=1)

    def test_moved_messages_stand_at_the_back_of_the_other_queue_in_their_order(
        self, queues: SlotQueues, broker: Broker, publish: Publish
    ) -> None:
        self._needs_moves(queues)
        there = tenure(slot=WorkerQueue("bob@host.example"))
        broker.publish("default", there.slot, b"0")
        publish(b"1", b"2", b"3")
        first, second, third = take(queues, FIRST).deliveries
        dispositions = [move(first, there.slot), move(second, there.slot, ODD), move(third, there.slot)]
        assert settle(queues, *dispositions).confirmed == dispositions
        assert holds(queues, 7, waiting=0, deferred=0, in_flight=0)
        open_slot(queues, there)
        assert bodies(take(queues, there)) == [b"0", b"1", ODD, b"3"]

    def test_a_moved_message_keeps_its_priority_and_loses_its_marks(
        self, queues: SlotQueues, broker: Broker, publish: Publish
    ) -> None:
        self._needs_moves(queues)
        broker.publish("default", 8, b"0")
        second = queues.guarantees.priorities[:2][-1]
        publish(b"1", priority=second)
        take(queues, FIRST)
        open_slot(queues, NEXT)
        (suspect,) = take(queues, NEXT).deliveries
        assert suspect.attempts == (0 if queues.guarantees.counts_starts else None)
        settle(queues, move(suspect, 8))
        open_slot(queues, tenure(slot=8))
        found = take(queues, tenure(slot=8)).deliveries
        assert [(d.body, d.priority, d.attempts) for d in found] == [(b"0", 0, None), (b"1", second, None)]

    def test_nothing_moves_for_a_former_tenure(self, queues: SlotQueues, publish: Publish) -> None:
        self._needs_moves(queues)
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        open_slot(queues, NEXT, [delivery.tag])
        assert settle(queues, move(delivery, 8)).refused == [move(delivery, 8)]
        assert holds(queues, 7, waiting=0, deferred=0, in_flight=1)
        assert holds(queues, 8, waiting=0, deferred=0, in_flight=0)

    def test_who_waits_for_the_other_queue_hears_of_a_moved_message(
        self, queues: SlotQueues, broker: Broker, publish: Publish
    ) -> None:
        self._needs_moves(queues)
        there = tenure(slot=WorkerQueue("me"))
        open_slot(queues, there)
        assert take(queues, there).drained == {("default", "@me")}
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        settle(queues, move(delivery, there.slot))
        assert ("default", "@me") in queues.idle(LONG)

    @staticmethod
    def _needs_moves(queues: SlotQueues) -> None:
        if not queues.guarantees.moves:
            pytest.skip("this driver does not move messages between queues")

    @pytest.mark.parametrize("end", [ack, lambda d: defer(d, NOW, b"x"), bury], ids=["ack", "defer", "bury"])
    def test_only_the_first_disposition_of_a_delivery_counts(
        self, queues: SlotQueues, publish: Publish, end: End
    ) -> None:
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        answer = settle(queues, ack(delivery), end(delivery))
        assert (answer.confirmed, answer.refused) == ([ack(delivery)], [end(delivery)])
        assert settle(queues, end(delivery)).refused == [end(delivery)]
        assert bodies(take(queues, FIRST)) == []
        assert queues.dead("default") == []

    def test_dispositions_are_settled_before_the_fetch(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        (first,) = take(queues, FIRST, limit=1).deliveries
        assert bodies(take(queues, FIRST, defer(first, NOW))) == [b"2", b"1"]

    def test_a_deferred_message_comes_when_it_is_due_at_the_back(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        (delivery,) = take(queues, FIRST).deliveries
        answer = take(queues, FIRST, defer(delivery, NOW + 10.25))
        assert (answer.deliveries, answer.due, answer.drained) == ([], {HERE: NOW + 10.25}, {HERE})
        publish(b"2")
        assert take(queues, FIRST, limit=0, now=NOW + 10.2).due == {HERE: NOW + 10.25}
        answer = take(queues, FIRST, now=NOW + 10.25)
        assert (bodies(answer), answer.due) == ([b"2", b"1"], {})

    def test_deferred_messages_come_in_the_order_in_which_they_come_due(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(*[b"%d" % i for i in range(12)])
        brought = take(queues, FIRST).deliveries
        dues = {0: 5.0, 1: 3.0, **dict.fromkeys(range(2, 12), 4.0)}
        settle(queues, *[defer(d, NOW + dues[i]) for i, d in enumerate(brought)])
        assert take(queues, FIRST, now=NOW + 3).due == {HERE: NOW + 4}
        assert bodies(take(queues, FIRST, now=NOW + 9)) == [b"%d" % i for i in (*range(2, 12), 0)]

    def test_a_deferred_message_keeps_its_priority_and_may_get_another_body(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        last = queues.guarantees.priorities[-1]
        publish(b"1", priority=last)
        (delivery,) = take(queues, FIRST).deliveries
        settle(queues, defer(delivery, NOW, ODD))
        (again,) = take(queues, FIRST).deliveries
        assert (again.body, again.priority, again.attempts) == (ODD, last, None)

    def test_equal_bodies_are_deferred_each_by_itself(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"1")
        settle(queues, *[defer(d, NOW + 1) for d in take(queues, FIRST).deliveries])
        assert bodies(take(queues, FIRST, now=NOW + 1)) == [b"1", b"1"]

    def test_deferred_messages_outlive_the_owner_and_take_the_place_where_they_came_due(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(b"1", b"2")
        first, _ = take(queues, FIRST).deliveries
        settle(queues, defer(first, NOW + 1))
        open_slot(queues, NEXT)
        assert bodies(take(queues, NEXT, now=NOW + 1)) == [b"2", b"1"]
        open_slot(queues, tenure(epoch=7))
        assert bodies(take(queues, tenure(epoch=7))) == [b"2", b"1"]

    def test_buried_messages_are_listed_oldest_first_and_not_delivered(
        self, queues: SlotQueues, publish: Publish, connect: Connect
    ) -> None:
        count = 410
        publish(*[b"%d" % i for i in range(count)])
        brought = take(queues, FIRST, limit=count).deliveries
        settle(queues, *[bury(d, f'{{"reason": "{d.body.decode()}"}}') for d in reversed(brought)])
        reader = connect()
        dead = reader.dead("default")
        assert [d.body for d in dead] == [None] * count, "a list brings no bodies"
        whole = [reader.dead_message("default", d.id) for d in dead]
        assert [d.body for d in whole if d] == [b"%d" % i for i in reversed(range(count))]
        assert [d.info for d in whole if d] == [d.info for d in dead]
        assert reader.dead_counts(["default", "orders"]) == {"default": count, "orders": 0}
        assert {d.id for d in dead} == {f"7-{d.tag.number}" for d in brought}
        assert dead[0].info == f'{{"reason": "{count - 1}"}}'
        open_slot(queues, NEXT)
        assert take(queues, NEXT).deliveries == []

    def test_buried_messages_are_listed_by_pages(self, queues: SlotQueues, publish: Publish) -> None:
        publish(*[b"%d" % i for i in range(5)])
        settle(queues, *[bury(d) for d in take(queues, FIRST).deliveries])
        every = queues.dead("default")
        assert queues.dead("default", limit=2) == every[:2]
        assert queues.dead("default", after=every[1].id, limit=2) == every[2:4]
        assert queues.dead("default", after=every[3].id, limit=2) == every[4:]
        assert queues.dead("default", after=every[4].id) == []
        assert queues.dead_message("default", "7-99") is None

    def test_the_oldest_buried_messages_are_dropped_beyond_a_number_or_an_age(
        self, queues: SlotQueues, publish: Publish
    ) -> None:
        publish(*[b"%d" % i for i in range(6)])
        brought = take(queues, FIRST).deliveries
        settle(queues, *[bury(d, f'{{"at": {NOW + i}}}') for i, d in enumerate(brought)])

        def left() -> list[int]:
            return [int(d.id.rpartition("-")[2]) - brought[0].tag.number for d in queues.dead("default")]

        assert queues.trim_dead("default", limit=0, before=0.0) == 0
        assert queues.trim_dead("default", limit=4, before=0.0) == 2
        assert left() == [2, 3, 4, 5]
        assert queues.trim_dead("default", limit=0, before=NOW + 4) == 2
        assert left() == [4, 5]
        assert queues.trim_dead("default", limit=2, before=NOW) == 0

    def test_an_requeued_message_goes_to_the_back_of_its_queue_once(self, queues: SlotQueues, publish: Publish) -> None:
        second = queues.guarantees.priorities[:2][-1]
        publish(b"1", b"2", priority=second)
        (first,) = take(queues, FIRST, limit=1).deliveries
        settle(queues, bury(first))
        assert queues.requeue("default", f"7-{first.tag.number}")
        assert not queues.requeue("default", f"7-{first.tag.number}")
        brought = take(queues, FIRST).deliveries
        assert [(d.body, d.priority) for d in brought] == [(b"2", second), (b"1", second)]
        assert queues.dead("default") == []

    def test_a_dropped_message_is_gone(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1")
        (first,) = take(queues, FIRST).deliveries
        settle(queues, bury(first))
        assert not queues.drop("orders", f"7-{first.tag.number}")
        assert queues.drop("default", f"7-{first.tag.number}")
        assert not queues.drop("default", f"7-{first.tag.number}")
        assert not queues.requeue("default", f"7-{first.tag.number}")

    @pytest.mark.parametrize("name", ["7-99", "", "x", "x-1", "7"])
    def test_there_is_no_such_dead_message(self, queues: SlotQueues, name: str) -> None:
        assert not queues.requeue("default", name)
        assert not queues.drop("default", name)

    def test_depth_counts_what_stands_in_a_slot_who_owns_it(
        self, queues: SlotQueues, publish: Publish, connect: Connect
    ) -> None:
        publish(
            b"1", b"2", b"3", b'{"body": "W10=", "headers": {"id": "1", "sticky": {"v": 1, "at": 12.5, "key": "a"}}}'
        )
        publish(b"5", priority=queues.guarantees.priorities[-1])
        first, *_ = take(queues, FIRST, limit=3).deliveries
        settle(queues, defer(first, NOW + 1))
        other = connect()
        assert holds(other, 7, waiting=2, deferred=1, in_flight=2) and holds(
            other, 8, waiting=0, deferred=0, in_flight=0
        )
        assert [other.depths([("default", slot)])["default", slot].oldest for slot in (7, 8)] == [12.5, None]
        take(queues, FIRST, limit=1)
        assert holds(other, 7, waiting=1, deferred=1, in_flight=3)
        assert other.depths([("default", 7)])["default", 7].oldest is None, "no stamp, no age"

    def test_one_request_counts_slots_of_many_keyspaces(
        self, queues: SlotQueues, broker: Broker, connect: Connect
    ) -> None:
        slots: tuple[Slot, ...] = (0, 7, WorkerQueue("w"))
        places: list[SlotId] = [(f"k{number}", slot) for number in range(50) for slot in slots]
        broker.publish("k3", 7, b"one", 0)
        broker.publish("k30", 7, b"two", 0)
        broker.publish("k30", 7, b"three", 9)
        reader = connect()
        depths = reader.depths(places)
        assert list(depths) == places, "each of them, in the given order"
        assert {place: depth.waiting for place, depth in depths.items() if depth.waiting} == {
            ("k3", 7): 1,
            ("k30", 7): 2,
        }
        assert reader.depths([]) == {} and reader.dead_counts([]) == {}
        assert len(reader.depths([("default", slot) for slot in range(9_000)])) == 9_000

    def test_idle_names_a_drained_slot_that_gets_a_message_once(self, queues: SlotQueues, broker: Broker) -> None:
        open_slot(queues, tenure(slot=8))
        queues.fetch([Want(FIRST, 1), Want(tenure(slot=8), 1)], [], NOW)
        assert queues.idle(0) == set()
        timer = threading.Timer(0.1, broker.publish, ("default", 7, b"1", 9))
        timer.start()
        assert queues.idle(LONG) == {HERE}
        timer.join()
        broker.publish("default", 7, b"2")
        assert queues.idle(0.05) == set() or not queues.guarantees.exact_idle
        take(queues, FIRST)
        broker.publish("default", 7, b"3")
        assert queues.idle(LONG) == {HERE}

    def test_idle_names_a_slot_that_got_its_message_before(self, queues: SlotQueues, publish: Publish) -> None:
        take(queues, FIRST)
        publish(b"1")
        assert queues.idle(LONG) == {HERE}
        take(queues, FIRST, limit=1)
        queues.idle(0)
        publish(b"2")
        assert queues.idle(LONG) == {HERE}

    def test_idle_ends_when_its_time_is_up(self, queues: SlotQueues) -> None:
        assert queues.idle(0) == queues.idle(0.01) == set()
        take(queues, FIRST)
        assert queues.idle(0) == queues.idle(0.01) == set()

    def test_idle_does_not_name_what_is_not_known_to_be_empty(self, queues: SlotQueues, publish: Publish) -> None:
        publish(b"1", b"2")
        take(queues, FIRST, limit=1)
        publish(b"3")
        assert queues.idle(0.05) == set() or not queues.guarantees.exact_idle

    def test_idle_does_not_wait_for_a_slot_that_was_given_back(self, queues: SlotQueues, publish: Publish) -> None:
        take(queues, FIRST)
        queues.release([tenure(epoch=4)])  # another tenure: no effect
        publish(b"1")
        assert queues.idle(LONG) == {HERE}
        take(queues, FIRST)
        queues.release([FIRST])
        publish(b"2")
        assert queues.idle(0.05) == set()
        open_slot(queues, AGAIN)
        assert bodies(take(queues, AGAIN)) == [b"1", b"2"]

    @pytest.mark.parametrize("own", [True, False])
    def test_idle_names_a_slot_whose_dead_message_was_requeued(
        self, queues: SlotQueues, publish: Publish, connect: Connect, own: bool
    ) -> None:
        publish(b"1")
        (first,) = take(queues, FIRST).deliveries
        take(queues, FIRST, bury(first))
        assert queues.idle(0) == set()
        assert (queues if own else connect()).requeue("default", f"7-{first.tag.number}")
        assert queues.idle(SOON) == {HERE}

    @pytest.mark.parametrize("drained", [True, False])
    def test_wake_ends_the_idle_under_way_or_the_next_one(self, queues: SlotQueues, drained: bool) -> None:
        if drained:
            take(queues, FIRST)
        queues.wake()
        queues.wake()
        assert queues.idle(LONG) == set()
        timer = threading.Timer(0.1, queues.wake)
        timer.start()
        assert queues.idle(LONG) == set()
        timer.join()
