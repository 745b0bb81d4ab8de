"""Real threads and locks, also where gevent or eventlet have replaced those of the standard library.

A heartbeat must not depend on greenlets giving way: a loop that computes for a minute would cost the lease.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


def original(module: str, name: str) -> Any:
    """Return what a module had under this name before gevent or eventlet replaced it."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(sys.modules[module], name)


def _locks_are_green() -> bool:
    return threading.Lock is not original("threading", "Lock")


_RLock: Any = original("_thread", "RLock")


class Section(_RLock):  # type: ignore[misc]
    """A lock among operating system threads that also knows signal handlers: hold it for microseconds, never over I/O.

    A handler runs in the main thread between any two bytecodes, perhaps those of a section, and cannot wait for itself.
    So what may be called from one asks `later` first, and is then called when the section is left.
    """

    def __init__(self) -> None:
        super().__init__()  # an RLock for its `_is_owned`: no section is entered twice
        self._left: deque[Callable[[], None]] = deque()

    def __exit__(self, *_: object) -> None:
        self.release()
        while self._left:
            self._left.popleft()()

    def later(self, call: Callable[[], None]) -> bool:
        """Whether this thread is in the section; then `call` is made when it is left."""
        if not self._is_owned():
            return False
        self._left.append(call)
        return True


def share_with_threads(*others: Any) -> None:
    """Give logging, and `others` with a `lock` of their own, locks that operating system threads may meet at.

    Two of those that meet at a lock of eventlet both stand still (eventlet/eventlet#432), at one of gevent the thread
    without a loop is thrown out (gevent/gevent#890).
    """
    if not _locks_are_green():
        return
    handlers = [handler for handler in (reference() for reference in list(logging._handlerList)) if handler]  # type: ignore[attr-defined]
    for owner, name in [(logging, "_lock"), *((one, "lock") for one in (*handlers, *others))]:
        setattr(owner, name, original("_thread", "RLock")())


def start_native_thread(target: Callable[[], None]) -> None:
    """Run `target` in an operating system thread that does not keep the process alive."""
    start = original("_thread", "start_new_thread")
    start(target, ())


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Run `target` in a daemon thread, or a greenlet where threads are greenlets."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
