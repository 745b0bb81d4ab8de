"""Messages as rows: Kombu's envelope as JSON. Text bodies are in it as they are, bytes as base64."""

from __future__ import annotations

from typing import Any

from kombu.utils.json import dumps
from kombu.utils.json import loads as kombu_loads

from celery_sticky.envelope import loads


def encode(message: dict[str, Any]) -> bytes:
    """Return the row's body."""
    return bytes(dumps(message).encode())


def decode(body: bytes) -> dict[str, Any] | None:
    """Return the envelope; None if it is none."""
    try:
        found = kombu_loads(body) if b"__type__" in body else loads(body)
    except (ValueError, TypeError, LookupError):
        return None
    properties = found.get("properties") if isinstance(found, dict) else None
    return found if isinstance(properties, dict) else None
