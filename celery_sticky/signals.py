"""Signals a worker sends in its main process when slots and pins come and go: for caches, connections and the like.

`slots_gained` comes when messages of the slots may start here. `slots_lost` comes when nothing of them runs here any
more, and the next owner starts only after its receivers have returned, except where the slots were lost to an eviction.
Both give `sender` (the worker's node name), `keyspace` and `slots` (a frozenset of slot numbers).

`pins_lost` comes when keys are not pinned any more that any process of this worker had pinned, and that it has not let
go: another worker took them, or this one was evicted. It comes when the worker is a member (again), so that a receiver
may pin. It gives `sender`, `keyspace` and `keys` (a frozenset of their texts), and may come twice for a key.

They are sent in threads of celery-sticky: receivers must be quick.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["pins_lost", "slots_gained", "slots_lost"]

slots_gained = Signal(name="slots_gained", providing_args={"keyspace", "slots"})
slots_lost = Signal(name="slots_lost", providing_args={"keyspace", "slots"})
pins_lost = Signal(name="pins_lost", providing_args={"keyspace", "keys"})
