"""Slot queues at a broker: `base` has the contract; each kind of broker is a file or folder of its own."""

from __future__ import annotations

from celery_sticky.queues.base import (
    Dead,
    Delivery,
    Depth,
    Disposition,
    Fetched,
    OpenAnswer,
    Opening,
    Outcome,
    SlotQueues,
    Tag,
    Tenure,
    Want,
)
from celery_sticky.queues.guarantees import Fence, Guarantees, Order

__all__ = [
    "Dead",
    "Delivery",
    "Depth",
    "Disposition",
    "Fence",
    "Fetched",
    "Guarantees",
    "OpenAnswer",
    "Opening",
    "Order",
    "Outcome",
    "SlotQueues",
    "Tag",
    "Tenure",
    "Want",
]
