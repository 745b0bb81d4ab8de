"""Signals that a worker sends in its main process: it gains or loses slots and pins, a job starts or ends.

`slots_gained` is sent when messages of the slots may start here. `slots_lost` is sent when no task of the slots runs
here any more. The next owner starts only after the receivers of `slots_lost` have returned, unless the slots were lost
to an eviction. Both signals pass `sender` (the worker's node name), `keyspace` and `slots` (a frozenset of slot
numbers).

`pins_lost` is sent when this worker has lost pins that one of its processes had set and not released: another worker
took them, or this one was evicted. It is sent once the worker is a member (again), so that a receiver can pin the keys
again. It passes `sender`, `keyspace` and `keys` (a frozenset of key texts), and may be sent twice for a key.

`pins_forgotten` is sent when nobody can say which pins this worker has lost, because the store has lost its data or the
worker was away for over a day. The worker has joined again: a receiver pins every key again that this worker holds. It
passes `sender` and `keyspace`.

`job_started`, `job_stopped` and `job_failed` are sent when a job starts here, when a run of it ends, and when its start
or its run fails. They pass `sender`, `keyspace`, `name`, `key`, `id` (of the dispatch), `attempt`, `epoch` and
`seconds`: how long the start or the stop took, or how long the run that failed lasted. `job_stopped` also passes `why`,
a text, and `ran`, in seconds; `job_failed` passes `error`.

Signals are sent in threads of celery-sticky, so receivers must be quick.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = ["job_failed", "job_started", "job_stopped", "pins_forgotten", "pins_lost", "slots_gained", "slots_lost"]

_RUN = {"keyspace", "name", "key", "id", "attempt", "epoch", "seconds"}

slots_gained = Signal(name="slots_gained", providing_args={"keyspace", "slots"})
slots_lost = Signal(name="slots_lost", providing_args={"keyspace", "slots"})
pins_lost = Signal(name="pins_lost", providing_args={"keyspace", "keys"})
pins_forgotten = Signal(name="pins_forgotten", providing_args={"keyspace"})
job_started = Signal(name="job_started", providing_args=_RUN)
job_stopped = Signal(name="job_stopped", providing_args=_RUN | {"why", "ran"})
job_failed = Signal(name="job_failed", providing_args=_RUN | {"error"})
