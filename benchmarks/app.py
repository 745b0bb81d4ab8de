"""The app under test, with and without celery-sticky: the same tasks, which do nothing.

A worker runs it as `celery -A benchmarks.app worker`, told by the environment which of the two it is.
"""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_sticky import Sticky

URL, KEYED, LOG = "BENCH_URL", "BENCH_KEYED", "BENCH_LOG"
SIDES = ("stock", "sticky")


def make_app(url: str, side: str, runtime_dir: str | None = None) -> Any:
    """Return the app of one side. `key="key"` means nothing to stock Celery."""
    app = Celery(f"bench-{side}", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,  # what celery-sticky always does
        task_default_queue=f"bench-{side}",
        broker_connection_retry_on_startup=True,
    )
    if side == "sticky":
        app.conf.update(sticky_settle=0.0, sticky_runtime_dir=runtime_dir)
        Sticky(app)

    @app.task(name="noop", key="key", shared=False)
    def noop(key: str) -> None:
        """Nothing."""

    @app.task(name="stamp", key="key", shared=False)
    def stamp(key: str, sent: int) -> None:
        """Say how long it took from before the publish to here, in nanoseconds."""
        waited = time.monotonic_ns() - sent
        with open(os.environ[LOG], "a") as log:
            log.write(f"{waited}\n")

    app.finalize()
    return app


if URL in os.environ:
    app = make_app(os.environ[URL], os.environ[KEYED], os.environ.get("BENCH_RUN"))
