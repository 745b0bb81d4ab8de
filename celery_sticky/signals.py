"""Signals that a worker sends in its main process when it gains or loses slots and pins, e.g. to manage caches.

`slots_gained` is sent when messages of the slots may start here. `slots_lost` is sent when no task of the slots runs
here any more. The next owner starts only after the receivers of `slots_lost` have returned, unless the slots were lost
to an eviction. Both signals pass `sender` (the worker's node name), `keyspace` and `slots` (a frozenset of slot
numbers).

`pins_lost` is sent when this worker has lost pins that one of its processes had set and not removed: another worker
took them, or this one was evicted. It is sent once the worker is a member (again), so that a receiver can pin the keys
again. It passes `sender`, `keyspace` and `keys` (a frozenset of key texts), and may be sent twice for a key.

Signals are sent in threads of celery-sticky, so receivers must be quick.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["pins_lost", "slots_gained", "slots_lost"]

slots_gained = Signal(name="slots_gained", providing_args={"keyspace", "slots"})
slots_lost = Signal(name="slots_lost", providing_args={"keyspace", "slots"})
pins_lost = Signal(name="pins_lost", providing_args={"keyspace", "keys"})
