"""Celery's rate limits for messages of slot queues: applied by the gate, with Celery's own buckets.

Celery makes a message of a limited task wait after it was handed out, where it takes up a place of the pool and so
blocks other keys. In the gate, it waits before it is handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.limited import Bucket


def limit_rates(consumer: Any, courier: Courier) -> None:
    """Make the courier apply the rate limits of a consumer, also those set later (`celery control rate_limit`)."""
    reset = consumer.reset_rate_limits

    def reset_and_tell() -> None:
        reset()
        courier.limit(_buckets(consumer))

    consumer.reset_rate_limits = reset_and_tell
    courier.limit(_buckets(consumer))


@contextmanager
def no_rate_limits(consumer: Any) -> Iterator[None]:
    """Build strategies without rate limits within this block."""
    disabled = consumer.disable_rate_limits
    consumer.disable_rate_limits = True
    try:
        yield
    finally:
        consumer.disable_rate_limits = disabled


def _buckets(consumer: Any) -> dict[str, Bucket]:
    if consumer.disable_rate_limits:
        return {}
    return {name: bucket for name, bucket in consumer.task_buckets.items() if bucket is not None}
