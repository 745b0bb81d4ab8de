"""Slot queues at a broker: `base` has the contract; each kind of broker is a file or folder of its own."""

from __future__ import annotations

from celery_sticky.queues.base import (
    Dead,
    Delivery,
    Depth,
    Disposition,
    Fetched,
    Guarantees,
    OpenAnswer,
    Opening,
    Outcome,
    SlotQueues,
    Tag,
    Tenure,
    Want,
)

__all__ = [
    "Dead",
    "Delivery",
    "Depth",
    "Disposition",
    "Fetched",
    "Guarantees",
    "OpenAnswer",
    "Opening",
    "Outcome",
    "SlotQueues",
    "Tag",
    "Tenure",
    "Want",
]
