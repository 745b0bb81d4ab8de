"""Signals a worker sends in its main process when slots come and go: for caches, connections and the like.

`slots_gained` comes when messages of the slots may start here. `slots_lost` comes when nothing of them runs here any
more, and the next owner starts only after its receivers have returned, except where the slots were lost to an eviction.
Both give `sender` (the worker's node name), `keyspace` and `slots` (a frozenset of slot numbers), and are sent in a
thread of celery-sticky: receivers must be quick.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["slots_gained", "slots_lost"]

slots_gained = Signal(name="slots_gained", providing_args={"keyspace", "slots"})
slots_lost = Signal(name="slots_lost", providing_args={"keyspace", "slots"})
