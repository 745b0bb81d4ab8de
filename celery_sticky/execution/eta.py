"""When a message is due, read from its headers as Celery reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware


def due_of(headers: Mapping[str, Any], timezone: Any) -> float | None:
    """Return when the message is due, in seconds since the Unix epoch, or None for at once."""
    eta = headers.get("eta")
    if not eta:
        return None
    try:
        due: float = maybe_make_aware(maybe_iso8601(eta), timezone).timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None  # Celery's Request refuses it with its own error
    return due
