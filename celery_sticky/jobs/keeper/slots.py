"""A keyspace's slots as its member sees them: a slot is held by tasks, at the courier, and by jobs, at the keeper."""

from __future__ import annotations

from collections.abc import Callable

from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.keys import SlotId
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.member import Slots
from celery_sticky.ownership.events import Drained, Event, Opened


class SharedSlots:
    """Tells courier and keeper what the member wants, and the member when both have done it.

    Jobs start when the slot is open for tasks, so that a slot has one moment at which it is ours; and a slot is drained
    when neither is left.
    """

    def __init__(self, courier: Slots, keeper: Keeper, lease: Lease, post: Callable[[Event], None]) -> None:
        self._courier, self._keeper, self._lease, self._post = courier, keeper, lease, post
        self._terms: dict[int, int] = {}

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """See `Slots.open`."""
        # In the member's thread: the courier may say that it is open when this membership is over and the next begun.
        self._terms[_number(slot)] = self._lease.membership(slot[0])
        self._courier.open(slot, epoch, incarnation)

    def stop(self, slot: SlotId) -> None:
        """See `Slots.stop`; the courier first: after it, it does not say any more that the slot was opened."""
        self._courier.stop(slot)
        self._keeper.stop(_number(slot))

    def close(self, slot: SlotId) -> None:
        """See `Slots.close`; the courier first, likewise."""
        self._courier.close(slot)
        self._keeper.close(_number(slot))

    def report(self, event: Event) -> None:
        """Pass on what the courier says; must not wait."""
        match event:
            case Drained(int(slot)):
                self._keeper.tasks_drained(slot)
                return
            case Opened(int(slot), epoch):
                self._keeper.open(slot, epoch, self._terms[slot])
        self._post(event)


def _number(slot: SlotId) -> int:
    assert isinstance(slot[1], int), "a member has no worker queues"
    return slot[1]
