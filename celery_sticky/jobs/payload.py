"""What jobs carry, as JSON: payloads, notifications and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from celery_sticky.errors import InvalidPayload
from celery_sticky.keys import Key

MAX_PAYLOAD = 256 * 1024
"""Maximum size of a payload's JSON, in bytes."""
MAX_SAVED = 64 * 1024
"""Maximum size of a checkpoint's JSON, in bytes."""


def as_json(name: str, value: Any, what: str = "payload", limit: int = MAX_PAYLOAD) -> bytes:
    """Return the JSON of a value that belongs to the job of this name.

    Raises:
        InvalidPayload: it is not JSON, or longer than `limit` bytes.
    """
    try:
        # Sorted keys: a repeated dispatch has the same bytes, however its payload was built.
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"job {name!r}: its {what} cannot be written as JSON: {error}") from error
    if len(text) > limit:
        raise InvalidPayload(
            f"job {name!r}: its {what} is {len(text)} bytes of JSON, the limit is {limit}; "
            "store it elsewhere and pass a reference"
        )
    return text


def pairs(payloads: Mapping[Key, Any] | Collection[Key]) -> Iterable[tuple[Key, Any]]:
    """Return each key with its payload; keys without payloads have None."""
    return payloads.items() if isinstance(payloads, Mapping) else ((key, None) for key in payloads)
