"""A thread that does the same at intervals, whatever blocks the rest of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_sticky.platform.native import original, start_native_thread


class Repeated:
    """Calls `do` every `step` seconds in an operating system thread. An error is logged, and the next call follows."""

    def __init__(self, do: Callable[[], None], step: float, logger: logging.Logger, what: str) -> None:
        """`what` begins the log line about an error."""
        self._do, self._step, self._logger, self._what = do, step, logger, what
        self._running = False

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        start_native_thread(self._run)

    def stop(self) -> None:
        """End the thread after the call under way."""
        self._running = False

    def _run(self) -> None:
        sleep = original("time", "sleep")
        while self._running:
            sleep(self._step)  # the interval
            try:
                self._do()
            except Exception:
                self._logger.exception("%s: unexpected error; it continues", self._what)
