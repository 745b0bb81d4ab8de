"""Counts the messages of many slot queues at the server, in few round trips, each bounded in work and in bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar, cast

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.inspection import Depth, sent_at
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_resp import Argument, pack

SCRIPT_SLOTS = 64
"""Most slots counted by one run of the script: between two runs the server serves other clients."""
TRIP_SLOTS = 8192
"""Most slots counted in one round trip: 0.1 s of the server's time, about."""
TRIP_MESSAGES = 1024
"""Most messages read in one round trip."""
SMALL = 64 * 1024
"""Messages up to this many bytes are read to find their age."""

Item = TypeVar("Item")


class Depths:
    """See `SlotQueues.depths`. Used by one thread."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server, self._layout = server, layout
        self._script = Script.load("depth")

    def read(self, slots: Collection[SlotId]) -> dict[SlotId, Depth]:
        """Return the depths of slots."""
        counts = [count for some in _parts(list(slots), TRIP_SLOTS) for count in self._count(some)]
        fronts = [cast(bytes, front) for *_, front, _ in counts if front]
        sent = {name: at for some in _parts(fronts, TRIP_MESSAGES) for name, at in self._sent(some)}
        found = {}
        for slot, (waiting, deferred, in_flight, front, error) in zip(slots, counts, strict=True):
            why = cast(bytes, error).decode(errors="replace")
            numbers = cast(tuple[int, int, int], (waiting, deferred, in_flight))
            found[slot] = Depth(*numbers, sent.get(cast(bytes, front)), why)
        return found

    def _count(self, slots: Sequence[SlotId]) -> Iterator[Sequence[object]]:
        """Yield what the script says of each slot."""
        said: list[Argument] = [self._layout.separator, self._layout.steps_json, SMALL]
        calls = [([self._layout.queue(*slot) for slot in some], said) for some in _parts(slots, SCRIPT_SLOTS)]
        for reply in self._server.run_each(self._script, calls):
            if isinstance(reply, SlotBroken):  # the script itself reports slots of a wrong type
                raise reply
            yield from _parts(cast(list[object], reply), 5)

    def _sent(self, lists: Sequence[bytes]) -> Iterator[tuple[bytes, float | None]]:
        """Yield each list with the time at which its next message was sent."""
        fronts = self._server.ask(*[pack("LINDEX", name, -1) for name in lists])
        for name, body in zip(lists, fronts, strict=True):
            yield name, sent_at(cast(bytes | None, body))


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in sequences of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
