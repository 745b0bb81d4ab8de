"""Writes results of the main process in a thread, so that a result backend that is down does not block the worker.

Celery writes the results of a task's own process there. The results left to the main process (revoked, expired, timed
out, lost, refused before the start) would be written in its loop, where one write to a Redis that is down takes 20
seconds. The backend's own retry settings apply (`result_backend_always_retry`, its number of retries, its back-off).
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
"""Maximum number of waiting writes; beyond that the oldest is dropped."""

Write = Callable[[], None]


class Results:
    """Makes the waiting writes one after the other."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[str, Write]] = deque()
        self._lock = threading.RLock()  # a signal handler of Celery may call `put` in the same thread
        self._working = False

    def put(self, task_id: str, write: Write) -> None:
        """Queue the writing of a task's result."""
        with self._lock:
            given_up = self._inbox.popleft()[0] if len(self._inbox) >= MOST else None
            self._inbox.append((task_id, write))
            start, self._working = not self._working, True
        if given_up is not None:
            logger.error("the result of task %s is dropped: %d others wait for the result backend", given_up, MOST)
        if start:
            start_thread(self._run, "sticky-results")

    def finish(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until everything is written."""
        deadline = time.monotonic() + timeout
        while self._working and time.monotonic() < deadline:
            time.sleep(0.01)  # polls, so that the writer continues, whether it is a thread or a greenlet

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
    """A task's result backend, except that `Results` writes what Celery's `Request` marks."""

    def __init__(self, task: Any, results: Results) -> None:
        self._task, self._results = task, results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task.backend, name)

    def _put(self, mark: str, task_id: str, args: Any, options: Any) -> None:
        # The backend is looked up in the writing thread, because Celery has one for each thread.
        self._results.put(task_id, lambda: getattr(self._task.backend, mark)(task_id, *args, **options))

    def mark_as_failure(self, task_id: str, *args: Any, **options: Any) -> None:
        self._put("mark_as_failure", task_id, args, options)

    def mark_as_revoked(self, task_id: str, *args: Any, **options: Any) -> None:
        self._put("mark_as_revoked", task_id, args, options)


class Kept(Proxy):
    """A task as the main process sees it in a keyed run: kept until it ended, with its results written by `Results`."""

    acks_late = True
    reject_on_worker_lost = True
    retry_on_worker_lost = False


@functools.lru_cache(maxsize=4096)
def kept(task: Any, results: Results) -> Any:
    """Return a stand-in for `task` (signals take it for the task itself)."""
    aside = _Aside(task, results)
    return type("Kept", (Kept,), {"backend": property(lambda _: aside)})(lambda: task)
