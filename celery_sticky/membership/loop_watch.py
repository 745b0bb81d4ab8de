"""Checks that the loop that runs tasks answers, and reports when it has been silent for too long.

Heartbeats come from a thread of their own, so a worker whose loop hangs keeps its lease. This thread asks the loop,
which must answer that it can run tasks. A task that runs in the loop's own thread (solo, gevent, eventlet) delays the
answer, which is no hang: while a task is on that thread's stack, the time does not count.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery_sticky.ownership.events import Event, LoopAnswers, LoopSilent
from celery_sticky.platform.native import original, start_native_thread

logger = logging.getLogger("celery_sticky")

LOOKS = 10
"""How often the loop is asked within the timeout."""
SILENT = "Celery's loop does not answer"


class LoopWatch:
    """Watches one loop. `timeout` is in seconds; `report` is called in the watch's thread and must not block.

    `runs_task` returns whether a frame belongs to a running task; omit it if tasks never run in the loop's thread.
    """

    def __init__(
        self,
        timeout: float,
        report: Callable[[Event], None],
        runs_task: Callable[[FrameType], bool] = lambda _: False,
    ) -> None:
        self._timeout, self._report, self._runs_task = timeout, report, runs_task
        self._interval = timeout / LOOKS
        self.ask: Callable[[], None] | None = None
        """Asks the loop without waiting for the answer; None until there is a loop."""
        self.while_silent: Callable[[], None] = lambda: None
        """Called in the watch's thread after each check while the loop is reported as silent."""
        self._answered = False
        self._answered_at = self._looked_at = time.monotonic()
        self._last_good = time.time()
        self._lack = ""
        self._why = SILENT
        self._silence = 0.0
        self._silent = self._running = False

    def start(self) -> None:
        """Start to watch the loop of the calling thread."""
        self._loop_thread = original("_thread", "get_ident")()
        self._answered_at = self._looked_at = time.monotonic()
        self._last_good = time.time()
        self._running = True
        start_native_thread(self._run)

    def stop(self) -> None:
        """Stop watching: the worker shuts down, and its loop with it."""
        self._running = False

    def answer(self, lack: str = "") -> None:
        """Answer from the loop; `lack` says what is missing so that it cannot run tasks, if anything."""
        self._lack = lack
        if not lack:
            self._answered_at, self._last_good = time.monotonic(), time.time()
            self._answered = True

    def describe(self) -> dict[str, Any]:
        """Return the age of the last good answer in seconds, and the fault if it is too old: plain JSON."""
        age = time.monotonic() - self._answered_at
        return {"answer_age": age, "stalled": self._why if self._silent else None}

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        sleep = original("time", "sleep")
        while self._running:
            sleep(self._interval)  # until the next question to the loop
            try:
                self._look()
            except Exception:
                logger.exception("sticky: the watch over Celery's loop met an unexpected error; it continues")

    def _look(self) -> None:
        now = time.monotonic()
        # Count at most two intervals at a time: if this thread stood still, so did the whole process.
        passed = min(now - self._looked_at, 2 * self._interval)
        self._looked_at = now
        if self._answered:
            self._answered, self._silence = False, 0.0
        elif self._task_runs():
            self._silence = 0.0
        else:
            self._silence += passed
        if self._running and self._silent != (self._silence >= self._timeout):
            self._silent = not self._silent
            self._why = self._lack or SILENT
            self._tell()
        if self._silent:
            self.while_silent()
        if self.ask is not None:
            self.ask()

    def _tell(self) -> None:
        # Report first: the hanging thread may hold a lock of the logging module.
        if not self._silent:
            self._report(LoopAnswers())
            logger.warning("sticky: Celery's loop answers and can run tasks; this worker takes slots again")
            return
        self._report(LoopSilent(f"{self._last_good:.1f} {self._why}"))
        logger.warning(
            "sticky: %s, for %.0f s: keyed tasks do not start here. If other workers can take them, the slots move "
            "there until the loop answers (see sticky_loop_timeout). The loop's thread is at:\n%s",
            self._why,
            self._silence,
            "".join(traceback.format_stack(self._frame())),
        )

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._loop_thread)

    def _task_runs(self) -> bool:
        frame = self._frame()
        while frame is not None:
            if self._runs_task(frame):
                return True
            frame = frame.f_back
        return False
