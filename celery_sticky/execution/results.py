"""Results that the main process writes, in a thread of its own: a result backend that is away holds up nobody else.

What a task's own process writes, Celery writes there. What is left for the main process (revoked, expired, timed out,
lost, refused before the start) would be written in its loop, where one write to a Redis that is away takes 20 seconds.
The backend's own rules for retries hold (`result_backend_always_retry`, its number of retries, its back-off).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from celery.local import Proxy

from celery_sticky.platform.native import start_thread

logger = logging.getLogger("celery_sticky")

MOST = 10_000
"""Writes that wait at most; beyond that the oldest is given up."""

Write = Callable[[], None]


class Results:
    """Makes writes one after the other, while there are any."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[str, Write]] = deque()
        self._lock = threading.RLock()  # a signal handler of Celery's may come between, in the same thread
        self._working = False

    def put(self, task_id: str, write: Write) -> None:
        """Write the result of a task as soon as it can be."""
        with self._lock:
            given_up = self._inbox.popleft()[0] if len(self._inbox) >= MOST else None
            self._inbox.append((task_id, write))
            start, self._working = not self._working, True
        if given_up is not None:
            logger.error("the result of task %s is given up: %d others wait for the result backend", given_up, MOST)
        if start:
            start_thread(self._run, "sticky-results")

    def finish(self, timeout: float) -> None:
        """Wait until all is written, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._working and time.monotonic() < deadline:
            time.sleep(0.01)  # looks again: what writes is a thread or a greenlet, and either goes on meanwhile

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._inbox:
                    self._working = False
                    return
                task_id, write = self._inbox.popleft()
            try:
                write()
            except Exception:
                logger.exception("the result of task %s could not be written", task_id)


class _Aside:
    """A task's result backend, but that what Celery's `Request` marks is written by `Results`."""

    def __init__(self, task: Any, results: Results) -> None:
        self._task, self._results = task, results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task.backend, name)

    def _put(self, mark: str, task_id: str, args: Any, options: Any) -> None:
        # The backend is taken there: Celery has one for each thread.
        self._results.put(task_id, lambda: getattr(self._task.backend, mark)(task_id, *args, **options))

    def mark_as_failure(self, task_id: str, *args: Any, **options: Any) -> None:
        self._put("mark_as_failure", task_id, args, options)

    def mark_as_revoked(self, task_id: str, *args: Any, **options: Any) -> None:
        self._put("mark_as_revoked", task_id, args, options)


class Kept(Proxy):
    """A task as the main process sees it in a keyed run: kept until it ended, its results written aside."""

    acks_late = True
    reject_on_worker_lost = True
    retry_on_worker_lost = False


@functools.lru_cache(maxsize=4096)
def kept(task: Any, results: Results) -> Any:
    """Return what stands in for `task` (signals take it for the task itself)."""
    aside = _Aside(task, results)
    return type("Kept", (Kept,), {"backend": property(lambda _: aside)})(lambda: task)
