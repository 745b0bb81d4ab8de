"""Threads of the operating system for calls that may take long. One that has done its call waits for the next.

gevent and eventlet make an event loop for each thread that waits, and do not free it when the thread ends: a new thread
for each call would leave files open. To free the loop ourselves is not safe, because sockets may still refer to it.
"""

from __future__ import annotations

from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable
from functools import partial

from celery_sticky.platform.native import start_native_thread

Call = Callable[[], None]
"""A call that raises nothing."""
Calls = SimpleQueue[Call | None]
"""What one thread gets to do; None: end. Taken from `_queue`, where neither gevent nor eventlet patches it."""


class AsideThreads:
    """As many threads as there are calls at a time. Any thread may use it."""

    def __init__(self) -> None:
        self._idle: deque[Calls] = deque()
        self._closed = False

    def run(self, call: Call) -> None:
        """Make a call in a thread that has nothing to do, or in a new one."""
        self._closed = False
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            start_native_thread(partial(self._work, calls))
        calls.put(call)

    def close(self) -> None:
        """End each thread when it has nothing to do."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, calls: Calls) -> None:
        while (call := calls.get()) is not None:
            call()
            self._idle.append(calls)
            if self._closed:
                self.close()
