"""Reads fetched messages: each becomes an entry for the gate, or has a reason to be buried."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from typing import Protocol

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import Item
from celery_sticky.envelope import Envelope
from celery_sticky.errors import StickyError
from celery_sticky.keys import SlotId
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.queues.base import Delivery, RunClaim

logger = logging.getLogger("celery_sticky.courier")

UNREAD = Envelope({}, {}, "", "", b"")


class TaskSink(Protocol):
    """The task sink: what the courier needs from the Celery side. Called by the courier's flow, in its thread."""

    def concurrency(self) -> int:
        """Return how many tasks the pool runs at a time right now."""

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        """Return the lock that the task of this message holds while it runs; raise a `StickyError` to bury it."""

    def claim_of(self, envelope: Envelope) -> RunClaim | None:
        """Return the run that must be claimed in the ledger before it starts; None: its task needs no ledger."""

    def due_of(self, envelope: Envelope) -> float | None:
        """Return when the message should run, in seconds since the epoch, or None."""

    def ready(self) -> None:
        """Note that entries can be taken now."""

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """Tell those who wait for these messages that they were buried before they started. Must not block."""


def read(delivery: Delivery, sink: TaskSink, *, placed: bool) -> tuple[Entry, float | None, str]:
    """Return the entry of a delivery, when it is due, and the reason to bury it or an empty string."""
    slot = (delivery.tenure.keyspace, delivery.tenure.slot)
    entry = Entry(slot, delivery.tag, None, Item(delivery, UNREAD), delivery.attempts, size=delivery.size)
    try:
        envelope = delivery.envelope()
        entry.content, entry.kind = Item(delivery, envelope), envelope.task
        entry.key = sink.lock_of(slot, envelope)
        due = sink.due_of(envelope)
        if placed:
            _have_claimed(entry, envelope)
        entry.run = sink.claim_of(envelope)
        if entry.run is not None and entry.run.once:
            entry.attempts = None  # it starts once: there is nothing to count
    except MemoryError:
        raise
    except Exception as error:  # a key function may fail in any way on arguments that it does not expect
        reason = str(error) if isinstance(error, StickyError) else f"its key cannot be read: {error!r:.300}"
        logger.error("a message in slot %s of keyspace %s is buried: %s", slot[1], slot[0], reason)
        return entry, None, reason
    return entry, due, ""


def _have_claimed(entry: Entry, envelope: Envelope) -> None:
    """Note that the key must be claimed, and add the starts that were counted in earlier queues."""
    stamp = Stamp.from_header(envelope.headers[STAMP_HEADER])
    entry.claim = (entry.slot[0], stamp.key)
    if stamp.starts is not None:
        entry.base = stamp.starts
        entry.attempts = (entry.attempts or 0) + stamp.starts
