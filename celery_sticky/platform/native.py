"""Real threads and locks, even if gevent or eventlet have replaced those of the standard library.

Heartbeats must not depend on greenlets that yield: a loop that computes for a minute would cost the lease.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


def original(module: str, name: str) -> Any:
    """Return the object that a module had under this name before gevent or eventlet replaced it."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(sys.modules[module], name)


def _locks_are_green() -> bool:
    return threading.Lock is not original("threading", "Lock")


def lock_domain() -> int:
    """Return a number that differs between threads which cannot share a lock of the standard library.

    It is 0 for all threads, unless gevent or eventlet have replaced these locks.
    """
    return int(original("_thread", "get_ident")()) if _locks_are_green() else 0


_RLock: Any = original("_thread", "RLock")


class Section(_RLock):  # type: ignore[misc]
    """A lock between operating system threads, safe for signal handlers: hold it for microseconds, never over I/O.

    A signal handler runs in the main thread between any two bytecodes, perhaps inside a section, and cannot wait for
    itself. So code that a handler may call asks `later` first; if in the section, it is called when the section is
    left.
    """

    def __init__(self) -> None:
        super().__init__()  # an RLock only for its `_is_owned`: no section is entered twice
        self._left: deque[Callable[[], None]] = deque()

    def __exit__(self, *_: object) -> None:
        self.release()
        while self._left:
            self._left.popleft()()

    def later(self, call: Callable[[], None]) -> bool:
        """Return whether this thread is in the section; if so, `call` is made when the section is left."""
        if not self._is_owned():
            return False
        self._left.append(call)
        return True


def share_with_threads(*others: Any) -> None:
    """Replace the locks of logging, and the `lock` of each of `others`, by locks safe across operating system threads.

    If two such threads meet at an eventlet lock, both hang (eventlet/eventlet#432). At a gevent lock, the thread
    without a loop gets an exception (gevent/gevent#890).
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
    """Run `target` in a daemon thread, or in a greenlet if threads are replaced by greenlets."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
