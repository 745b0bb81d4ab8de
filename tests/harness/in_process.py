"""A Celery worker in a thread of the test process, which leaves the process's logging and environment as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from celery import signals
from celery.contrib.testing.worker import start_worker


@contextmanager
def in_process_worker(app: Any, pool: str, **options: Any) -> Iterator[Any]:
    """Run a worker in this process until the end of the block."""

    def leave_logging_alone(**_: Any) -> None:
        """Do nothing: Celery configures no logging if this signal has a receiver."""

    signals.setup_logging.connect(leave_logging_alone)
    try:
        with (
            mock.patch.dict(os.environ),  # Celery leaves the log level there
            start_worker(app, pool=pool, concurrency=4, perform_ping_check=False, **options) as worker,
        ):
            yield worker
    finally:
        signals.setup_logging.disconnect(leave_logging_alone)
