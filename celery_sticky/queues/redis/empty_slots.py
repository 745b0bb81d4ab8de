"""The slots known to be empty, and the server's messages about them. Pure: it sends nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.redis_resp import Push


class EmptySlots:
    """Empty slots. For those in `unchecked` the server would not yet announce a new message."""

    def __init__(self, layout: Layout) -> None:
        self.unchecked: set[SlotId] = set()
        self._layout = layout
        self._slots: dict[SlotId, Tenure] = {}
        self._woken: set[SlotId] = set()
        self._slot_of: dict[bytes, SlotId] = {}
        self._packed: dict[SlotId, bytes] = {}

    def __contains__(self, slot: SlotId) -> bool:
        return slot in self._slots

    @property
    def slots(self) -> Collection[SlotId]:
        """Every empty slot."""
        return self._slots.keys()

    def add(self, slot: SlotId, tenure: Tenure) -> None:
        """Add a slot that was found empty."""
        self._slots[slot] = tenure
        self.unchecked.add(slot)
        self._woken.discard(slot)

    def remove(self, slot: SlotId) -> None:
        """Remove a slot that may not be empty, or does not matter any more."""
        self._slots.pop(slot, None)
        self.unchecked.discard(slot)
        self._woken.discard(slot)

    def release(self, slot: SlotId, tenure: Tenure) -> None:
        """Stop waiting for the slot under this tenure."""
        if self._slots.get(slot) == tenure:
            self.remove(slot)

    def got(self, slot: SlotId) -> None:
        """Note that an empty slot may have received a message."""
        if slot in self._slots:
            self._woken.add(slot)

    def hear(self, push: Push) -> None:
        """Process the server's message about changed keys; without keys it means all of them."""
        if len(push) != 2 or push[0] != b"invalidate":
            return
        if push[1] is None:
            self._woken.update(self._slots)
            return
        for key in cast(list[bytes], push[1]):
            if (slot := self._slot_of.get(key)) is not None:
                self.got(slot)

    def take(self) -> set[SlotId]:
        """Return the slots that may have received a message; they no longer count as empty."""
        woken = set(self._woken)
        for slot in woken:
            self.remove(slot)
        return woken

    def request(self, slots: Collection[SlotId]) -> bytes:
        """Return the request that counts the lists of these slots and makes the server announce changes of them."""
        keys = [self._keys(slot) for slot in slots]
        count = len(keys) * len(self._layout.steps)
        return b"*%d\r\n$6\r\nEXISTS\r\n%b" % (count + 1, b"".join(keys))

    def _keys(self, slot: SlotId) -> bytes:
        packed = self._packed.get(slot)
        if packed is None:
            keys = [key.encode() for key in self._layout.lists(*slot)]
            packed = self._packed[slot] = b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys)
            self._slot_of.update((key, slot) for key in keys)
        return packed
