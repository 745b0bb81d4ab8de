"""Real threads and locks, also where gevent or eventlet have replaced those of the standard library.

A heartbeat must not depend on greenlets giving way: a loop that computes for a minute would cost the lease.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast


def _original(module: str, name: str) -> Any:
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(sys.modules[module], name)


def native_lock() -> AbstractContextManager[bool]:
    """Return a lock that excludes operating system threads: hold it for microseconds, never across I/O."""
    return cast(AbstractContextManager[bool], _original("_thread", "allocate_lock")())


def start_native_thread(target: Callable[[], None]) -> None:
    """Run `target` in an operating system thread that does not keep the process alive."""
    start = _original("_thread", "start_new_thread")
    start(target, ())


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Run `target` in a daemon thread, or a greenlet where threads are greenlets."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
