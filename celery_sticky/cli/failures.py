"""Server failures as one-line messages, so that no command ends in a traceback because of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kombu.exceptions import OperationalError

from celery_sticky.drivers import all_drivers
from celery_sticky.errors import StickyError

Found = TypeVar("Found")


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a command reports in one line: ours, Kombu's, the network's and the client libraries'."""
    of_clients = [driver.failures.classes() for driver in all_drivers() if driver.failures is not None]
    return (StickyError, OperationalError, OSError, *(one for classes in of_clients for one in classes))


def said(error: BaseException) -> str:
    """Return a failure as one line."""
    return " ".join((str(error) if isinstance(error, StickyError) else _described(error)).split())


def outcome(ask: Callable[[], Found]) -> Found | Exception:
    """Return the result of `ask`, or its failure."""
    try:
        return ask()
    except failures() as error:
        return error


def attempt(problems: list[str], what: str, ask: Callable[[], Found]) -> Found | None:
    """Return the result of `ask`. If it fails, add the failure to `problems` and return None."""
    return result_of(problems, what, outcome(ask))


def result_of(problems: list[str], what: str, found: Found | Exception) -> Found | None:
    """Return what `outcome` has found. If it is a failure, add it to `problems` and return None."""
    if not isinstance(found, Exception):
        return found
    problems.append(f"{what}: {said(found)}")
    return None


def _described(error: BaseException) -> str:
    for driver in all_drivers():
        if driver.failures is not None and (text := driver.failures.describe(error)):
            return text
    return f"{type(error).__name__}: {error}"
