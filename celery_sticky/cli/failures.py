"""Server failures as one-line messages, so that no command ends in a traceback because of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis
from kombu.exceptions import OperationalError

from celery_sticky.errors import StickyError
from celery_sticky.redis_errors import describe

FAILURES = (StickyError, OperationalError, redis.RedisError, OSError)

Found = TypeVar("Found")


def said(error: BaseException) -> str:
    """Return a failure as one line."""
    return " ".join((str(error) if isinstance(error, StickyError) else describe(error)).split())


def attempt(problems: list[str], what: str, ask: Callable[[], Found]) -> Found | None:
    """Return the result of `ask`. If it fails, add the failure to `problems` and return None."""
    try:
        return ask()
    except FAILURES as error:
        problems.append(f"{what}: {said(error)}")
        return None
