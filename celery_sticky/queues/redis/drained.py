"""Which slots are known to be empty, and what is heard of them. Pure: it sends nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from celery_sticky.keys import Slot
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.resp import Push

Place = tuple[str, Slot]


class Drained:
    """Empty slots; `unchecked` are those of which the server would not tell yet if they got a message."""

    def __init__(self, layout: Layout) -> None:
        self.unchecked: set[Place] = set()
        self._layout = layout
        self._slots: dict[Place, Tenure] = {}
        self._woken: set[Place] = set()
        self._place_of: dict[bytes, Place] = {}
        self._packed: dict[Place, bytes] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._slots

    @property
    def places(self) -> Collection[Place]:
        """Every empty slot."""
        return self._slots.keys()

    def add(self, place: Place, tenure: Tenure) -> None:
        """A slot was found empty."""
        self._slots[place] = tenure
        self.unchecked.add(place)
        self._woken.discard(place)

    def remove(self, place: Place) -> None:
        """Whether the slot is empty is not known, or does not matter any more."""
        self._slots.pop(place, None)
        self.unchecked.discard(place)
        self._woken.discard(place)

    def release(self, place: Place, tenure: Tenure) -> None:
        """This tenure does not wait for the slot any more."""
        if self._slots.get(place) == tenure:
            self.remove(place)

    def got(self, place: Place) -> None:
        """A slot may have got a message."""
        if place in self._slots:
            self._woken.add(place)

    def hear(self, push: Push) -> None:
        """Take what the server says of keys that changed; without keys it means all of them."""
        if len(push) != 2 or push[0] != b"invalidate":
            return
        if push[1] is None:
            self._woken.update(self._slots)
            return
        for key in cast(list[bytes], push[1]):
            if (place := self._place_of.get(key)) is not None:
                self.got(place)

    def take(self) -> set[Place]:
        """Return the slots that may have got a message; they do not count as empty any more."""
        woken = set(self._woken)
        for place in woken:
            self.remove(place)
        return woken

    def request(self, places: Collection[Place]) -> bytes:
        """Return the request that counts the lists of these slots, and makes the server tell of changes."""
        keys = [self._keys(place) for place in places]
        count = len(keys) * len(self._layout.steps)
        return b"*%d\r\n$6\r\nEXISTS\r\n%b" % (count + 1, b"".join(keys))

    def _keys(self, place: Place) -> bytes:
        packed = self._packed.get(place)
        if packed is None:
            keys = [key.encode() for key in self._layout.lists(*place)]
            packed = self._packed[place] = b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys)
            self._place_of.update((key, place) for key in keys)
        return packed
