"""A keyspace's slots as its member sees them: the courier holds a slot for tasks, the keeper holds it for jobs."""

from __future__ import annotations

from collections.abc import Callable

from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.keys import SlotId
from celery_sticky.membership.flow import Slots
from celery_sticky.ownership.events import Drained, Event, Opened, TasksDrained


class SharedSlots:
    """Passes the member's orders to courier and keeper, and their reports to the member.

    Jobs start when the slot is open for tasks, so a slot has one moment at which this worker gets it. They stop when
    its last task has ended: a task may take long, and nobody else can run them before.
    """

    def __init__(
        self, courier: Slots, keeper: Keeper, membership: Callable[[str], int], post: Callable[[Event], None]
    ) -> None:
        """`membership` returns the number of a keyspace's newest membership."""
        self._courier, self._keeper, self._membership, self._post = courier, keeper, membership, post
        self._memberships: dict[int, int] = {}

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """See `Slots.open`."""
        # Read in the member's thread: when the courier reports `Opened`, another membership may already have begun.
        self._memberships[_number(slot)] = self._membership(slot[0])
        self._courier.open(slot, epoch, incarnation)

    def stop(self, slot: SlotId) -> None:
        """See `Slots.stop`; reports `TasksDrained`."""
        self._courier.stop(slot)

    def stop_jobs(self, slot: SlotId) -> None:
        """See `JobSlots.stop_jobs`."""
        self._keeper.stop(_number(slot))

    def close(self, slot: SlotId) -> None:
        """See `Slots.close`. The courier comes first: after this call it no longer reports the slot as opened."""
        self._courier.close(slot)
        self._keeper.close(_number(slot))

    def report(self, event: Event) -> None:
        """Pass on the courier's reports; must not wait."""
        match event:
            case Drained(int(slot)):
                event = TasksDrained(slot)
            case Opened(int(slot), epoch):
                self._keeper.open(slot, epoch, self._memberships[slot])
        self._post(event)


def _number(slot: SlotId) -> int:
    assert isinstance(slot[1], int), "a member has no worker queues"
    return slot[1]
