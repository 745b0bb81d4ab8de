"""The watchdog of a job host: notices in a native thread that the event loop does not turn, and which job blocks it.

The worker decides what follows. It is told over a descriptor of its own, because the loop owns the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from celery_sticky.jobs.host.tasks import RUN
from celery_sticky.jobs.wire import Blocked, encode
from celery_sticky.platform.native import original
from celery_sticky.platform.repeated import Repeated

logger = logging.getLogger("celery_sticky.jobs")

WARN_AFTER = 5.0
"""Seconds without a turn of the loop after which the job at fault is logged."""
TICK = 0.5
"""Seconds between turns of an idle loop, and between looks."""

_HANDLE: CodeType = asyncio.Handle._run.__code__
"""The code by which a loop runs a task's step or a callback, each in its context."""


class Watchdog:
    """Watches the loop of the thread that creates it.

    `describe` returns name and key of a run, and is called in the watchdog's thread.
    """

    def __init__(self, report: int, describe: Callable[[int], tuple[str, str]], *, warn_after: float) -> None:
        """`report` is the descriptor to which `Blocked` messages are written."""
        os.set_blocking(report, False)
        self._descriptor, self._describe, self._warn_after = report, describe, warn_after
        self._thread = original("_thread", "get_ident")()
        self._turned = False
        self._silence = 0.0
        self._looked_at = time.monotonic()
        self._warned = False
        self._looks = Repeated(self._look, TICK, logger, "jobs: the watchdog of the job host")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to watch the loop."""

        def turn() -> None:
            self._turned = True
            loop.call_later(TICK, turn)

        turn()
        self._looks.start()

    def stop(self) -> None:
        """Stop watching."""
        self._looks.stop()

    def _look(self) -> None:
        now = time.monotonic()
        # Count at most two steps at a time: if this thread stood still, so did the whole process.
        passed = min(now - self._looked_at, 2 * TICK)
        self._looked_at = now
        if self._turned:
            self._turned = False
            if self._warned:
                logger.warning("jobs: the event loop of the job host turns again, after %.1f s", self._silence)
            self._silence, self._warned = 0.0, False
            return
        self._silence += passed
        if self._silence < self._warn_after:
            return
        frame = sys._current_frames().get(self._thread)
        run = run_of(frame)
        name, key = self._describe(run) if run else ("", "")
        blocked = Blocked(run, name, key, self._silence)
        # Report first: the blocked thread may hold a lock of the logging module.
        with suppress(OSError):  # the worker is gone, or does not read
            os.write(self._descriptor, encode(blocked))
        if not self._warned:
            self._warned = True
            logger.warning(
                "jobs: %s; all other jobs in its process wait. Its stack:\n%s",
                blocked,
                "".join(traceback.format_stack(frame)),
            )


def run_of(frame: FrameType | None) -> int:
    """Return the run whose code a loop executes in this frame, or 0."""
    while frame is not None:
        if frame.f_code is _HANDLE:
            handle: Any = frame.f_locals.get("self")
            if handle is not None and (run := int(handle._context.get(RUN, 0))):
                return run
        frame = frame.f_back
    return 0
