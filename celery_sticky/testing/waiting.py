"""Waits for a condition: the only kind of waiting in the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, message: str = "", interval: float = 0.02) -> T:
    """Call `predicate` until its value is true and return that value.

    Raises:
        AssertionError: `timeout` seconds passed; it has `message` and the last value.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            what = message or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"not within {timeout:g} s: {what} (last value: {value!r})")
        time.sleep(interval)
