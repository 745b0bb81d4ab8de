"""Waits until a drained slot may have a message, by looking again and again with growing pauses."""

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
from celery_sticky.waker import Waker

FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two looks: the first pause and the longest."""


class Waiting:
    """The drained slots of one driver."""

    def __init__(self, database: Database, exchange: Exchange, late: LateCommits) -> None:
        self._database, self._exchange, self._late = database, exchange, late
        self._drained: dict[SlotId, Tenure] = {}
        self._woken: set[SlotId] = set()
        """Drained slots that got a message from this driver."""
        self._waker = Waker()
        self._version: int | None = None
        """The database's version when every drained slot was empty; None: look at them."""
        self._pause = FIRST_PAUSE

    def add(self, slots: Collection[SlotId], brought: bool) -> None:
        """Note the slots that a fetch has found empty, and whether it brought anything."""
        for slot_id in slots:
            self._drained[slot_id] = self._exchange.slots[slot_id].tenure
        if slots:
            self._version = None
        if brought:
            self._pause = FIRST_PAUSE

    def remove(self, slots: Collection[SlotId]) -> None:
        """Stop waiting for slots."""
        for slot_id in slots:
            self._drained.pop(slot_id, None)
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
        """Close what `wake` uses."""
        self._waker.close()

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        self._waker.wake()

    def wait(self, timeout: float) -> set[SlotId]:
        """See `SlotQueues.idle`."""
        deadline, woken = time.monotonic() + timeout, False
        while True:
            ready = self._look()
            left = deadline - time.monotonic()
            if ready or left <= 0 or woken:
                break
            woken, _ = self._waker.wait(min(left, self._pause) if self._drained else left, None)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if ready:
            self._pause = FIRST_PAUSE
            self.remove(ready)
        return ready

    def _look(self) -> set[SlotId]:
        """Return the drained slots that have messages."""
        slots = [slot for slot_id in self._drained if (slot := self._exchange.slots.get(slot_id)) is not None]
        ready = self._woken & self._drained.keys()
        if not slots:
            return ready
        version = self._database.version()
        if version is None or version != self._version:
            ready |= self._filled(slots)
            self._version = version
        return ready | {slot.id for slot in self._late.watch(slots)}

    def _filled(self, slots: Collection[OpenSlot]) -> set[SlotId]:
        """Return those of the slots that have unfetched messages."""
        parts = [(slot.queue, part) for slot in slots for part in slot.ranges()]
        found = filled(self._database, self._database.dialect, parts)
        return {slot.id for slot in slots if slot.queue in found}
