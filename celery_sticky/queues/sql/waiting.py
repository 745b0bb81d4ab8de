"""Waits until a drained slot may have a message: until the ear hears of one, or else by looking again and again.

While the ear is proven, it is looked only from time to time, in case a sender has died before it could ring. Otherwise
the pauses between two looks grow.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.sql.exchange import Exchange
from celery_sticky.queues.sql.late_commits import LateCommits
from celery_sticky.queues.sql.open_slot import OpenSlot
from celery_sticky.queues.sql.ranges import filled
from celery_sticky.sql import Database
from celery_sticky.sql.bell import Topic, queue_topic
from celery_sticky.sql.ear import Hearing, hear
from celery_sticky.sql.pauses import FIRST_PAUSE, SAFETY_PAUSE, longer
from celery_sticky.waker import Waker


class Waiting:
    """The drained slots of one driver."""

    def __init__(self, database: Database, exchange: Exchange, late: LateCommits) -> None:
        self._database, self._exchange, self._late = database, exchange, late
        self._drained: dict[SlotId, Tenure] = {}
        self._woken: set[SlotId] = set()
        """Drained slots that got a message from this driver."""
        self._waker = Waker()
        self._called = False
        """Whether `wake` was called."""
        self._version: int | None = None
        """The database's version when every drained slot was empty; None: look at them."""
        self._pause = FIRST_PAUSE
        self._hearing: Hearing | None = None
        self._topics: dict[Topic, SlotId] = {}
        """What is rung for the slots that were ever fetched from."""
        self._known: set[SlotId] = set()
        """The slots with a topic."""
        self._next_look = 0.0
        """When to look at all drained slots, whatever is heard, on the monotonic clock."""

    def add(self, slots: Collection[SlotId], brought: bool) -> None:
        """Note the slots that a fetch has found empty, and whether it brought anything."""
        for slot_id in slots:
            self._drained[slot_id] = self._exchange.slots[slot_id].tenure
        if slots:
            self._version = None
        if self._hearing is None and slots:
            self._hearing = hear(self._database, self._waker.wake, lambda ring, topic: topic in self._topics)
        if brought:
            self._pause = FIRST_PAUSE

    def remove(self, slots: Collection[SlotId]) -> None:
        """Stop waiting for slots. Those that are open are listened to from now on, before they are found empty."""
        for slot_id in slots:
            self._drained.pop(slot_id, None)
            if slot_id not in self._known and (slot := self._exchange.slots.get(slot_id)) is not None:
                self._known.add(slot_id)
                self._topics[queue_topic(slot.queue)] = slot_id
        self._woken.difference_update(slots)

    def release(self, tenure: Tenure) -> None:
        """Stop waiting for a slot under this tenure."""
        slot_id = (tenure.keyspace, tenure.slot)
        if self._drained.get(slot_id) == tenure:
            self.remove([slot_id])

    def got(self, slot_id: SlotId) -> None:
        """Note that this driver has added a message to a slot."""
        if slot_id in self._drained:
            self._woken.add(slot_id)

    def close(self) -> None:
        """Hear no more, and close what `wake` uses."""
        if self._hearing is not None:
            self._hearing.close()
        self._waker.close()

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._called = True
        self._waker.wake()

    def wait(self, timeout: float) -> set[SlotId]:
        """See `SlotQueues.idle`."""
        deadline = time.monotonic() + timeout
        while True:
            ready = self._look()
            left = deadline - time.monotonic()
            if ready or left <= 0 or self._called:
                break
            self._waker.wait(min(left, self._rest()) if self._drained else left, None)
            self._pause = longer(self._pause)
        self._called = False
        if ready:
            self._pause = FIRST_PAUSE
            self.remove(ready)
        return ready

    def _rest(self) -> float:
        """Return the seconds until the next look if nothing is heard."""
        if self._hearing is not None and self._hearing.proven:
            return self._next_look - time.monotonic()
        return self._pause

    def _look(self) -> set[SlotId]:
        """Return the drained slots that have messages, or have been rung for."""
        slots = [slot for slot_id in self._drained if (slot := self._exchange.slots.get(slot_id)) is not None]
        ready = self._woken & self._drained.keys()
        if not slots or self._hearing is None:
            return ready
        # A slot that is not drained will be fetched from anyway.
        heard = self._hearing.take()
        ready |= {self._topics[topic] for topic in heard.topics} & self._drained.keys()
        if self._hearing.proven and not heard.everything and time.monotonic() < self._next_look:
            return ready
        self._next_look = time.monotonic() + SAFETY_PAUSE
        version = self._database.version()
        if version is None or version != self._version:
            ready |= self._filled(slots)
            self._version = version
        return ready | {slot.id for slot in self._late.watch(slots, proven=self._hearing.proven)}

    def _filled(self, slots: Collection[OpenSlot]) -> set[SlotId]:
        """Return those of the slots that have unfetched messages."""
        parts = [(slot.queue, part) for slot in slots for part in slot.ranges()]
        found = filled(self._database, self._database.dialect, parts)
        return {slot.id for slot in slots if slot.queue in found}
