"""Slot queues at a broker: `base` has the contract; each kind of broker is a file or folder of its own."""

from __future__ import annotations

from celery_sticky.queues.base import (
    Delivery,
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
from celery_sticky.queues.inspection import Dead, Depth

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
