"""Signals that a worker sends in its main process, about its slots, pins and jobs, and about abandoned tasks.

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

`task_abandoned` is sent when a task with `delivery="at_most_once"` was buried because it may have run and nobody knows
how it ended. It passes `sender` (the worker's node name), `keyspace`, `task` (its name), `id`, `key` and `reason`.

Signals are sent in threads of celery-sticky, so receivers must be quick.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

__all__ = [
    "job_failed",
    "job_started",
    "job_stopped",
    "pins_forgotten",
    "pins_lost",
    "slots_gained",
    "slots_lost",
    "task_abandoned",
]

_RUN = {"keyspace", "name", "key", "id", "attempt", "epoch", "seconds"}

slots_gained = Signal(name="slots_gained", providing_args={"keyspace", "slots"})
slots_lost = Signal(name="slots_lost", providing_args={"keyspace", "slots"})
pins_lost = Signal(name="pins_lost", providing_args={"keyspace", "keys"})
pins_forgotten = Signal(name="pins_forgotten", providing_args={"keyspace"})
task_abandoned = Signal(name="task_abandoned", providing_args={"keyspace", "task", "id", "key", "reason"})
job_started = Signal(name="job_started", providing_args=_RUN)
job_stopped = Signal(name="job_stopped", providing_args=_RUN | {"why", "ran"})
job_failed = Signal(name="job_failed", providing_args=_RUN | {"error"})
