"""Which lock the task of a message holds while it runs: its key, or for tasks that need not be serial, only its id."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from celery_sticky.envelope import Envelope, loads
from celery_sticky.errors import InvalidKey
from celery_sticky.execution.context import WorkerContext
from celery_sticky.keys import SlotId, slot_for
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.slots import WorkerQueue


def lock_of(context: WorkerContext, slot: SlotId, envelope: Envelope) -> Hashable:
    """Return the lock that the task of this message holds while it runs.

    Raises:
        InvalidKey: the message is in the wrong slot, or its key cannot be read.
    """
    keyspace, number = slot
    spec = context.tasks.spec_for(envelope.task)
    header = envelope.headers.get(STAMP_HEADER)
    if header is None:
        header = _add_stamp(context, slot, envelope)
    stamp = Stamp.from_header(header)
    number = stamp.slot if isinstance(number, WorkerQueue) else number  # a worker queue has keys of every slot
    if (stamp.keyspace, stamp.slot, stamp.slots) != (keyspace, number, context.keyspaces[keyspace]):
        raise InvalidKey(
            f"the message is for keyspace {stamp.keyspace!r}, slot {stamp.slot} of {stamp.slots}, but is in "
            f"keyspace {keyspace!r}, slot {number} of {context.keyspaces[keyspace]}: "
            "its sender is configured with other slots than the workers"
        )
    if spec is not None and not spec.serial:
        return ("id", envelope.task_id)
    return (keyspace, stamp.key)


def _add_stamp(context: WorkerContext, slot: SlotId, envelope: Envelope) -> dict[str, Any]:
    """Stamp a message that a producer without celery-sticky put into the right queue."""
    spec = context.tasks.spec_for(envelope.task)
    if spec is None:
        raise InvalidKey(f"the message has no stamp, and task {envelope.task!r} has no key")
    try:
        args, kwargs, _ = loads(envelope.body)
    except (ValueError, TypeError) as error:
        raise InvalidKey("the message has no stamp, and its arguments are not JSON") from error
    key, slots = spec.key_text(args, kwargs), context.keyspaces[slot[0]]
    stamp = Stamp(key, spec.keyspace, slot_for(key, slots), slots, time.time()).to_header()
    envelope.headers[STAMP_HEADER] = stamp
    return stamp
