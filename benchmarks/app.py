"""The app under test, with and without celery-sticky: the same tasks, which do almost nothing.

A worker runs it as `celery -A benchmarks.app worker`; the environment selects the side.
"""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery

from celery_sticky import Sticky
from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.sql.link import Link, Parameters
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.slot_log import SlotLog

URL, KEYED, LOG, CONF = "BENCH_URL", "BENCH_KEYED", "BENCH_LOG", "BENCH_CONF"
STATEMENTS = "BENCH_STATEMENTS"
SIDES = ("stock", "sticky")
NAP = 0.005
"""Seconds the task `nap` takes: a backlog of them hardly shrinks while something is measured."""


def make_app(url: str, side: str, runtime_dir: str | None = None) -> Any:
    """Return the app of one side. `key="key"` means nothing to stock Celery."""
    app = Celery(f"bench-{side}", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,  # celery-sticky always does this
        task_default_queue=f"bench-{side}",
        broker_connection_retry_on_startup=True,
    )
    if side == "sticky":
        app.conf.update(sticky_settle=0.0, sticky_runtime_dir=runtime_dir)
    app.conf.update(json.loads(os.environ.get(CONF, "{}")))
    if side == "sticky":
        Sticky(app)

    @app.task(name="noop", key="key", shared=False)
    def noop(key: str) -> None:
        """Do nothing."""

    @app.task(name="count", key="key", shared=False)
    def count(key: str) -> None:
        """Let the log grow by one byte."""
        os.write(_log(os.environ[LOG]), b".")

    @app.task(name="carry", key="key", shared=False)
    def carry(key: str, load: str) -> None:
        """Do nothing, with a large argument."""

    @app.task(name="stamp", key="key", shared=False)
    def stamp(key: str, sent: int) -> None:
        """Record the time from before the publish to here, in nanoseconds."""
        waited = time.monotonic_ns() - sent
        with open(os.environ[LOG], "a") as log:
            log.write(f"{waited}\n")

    @app.task(name="nap", key="key", shared=False)
    def nap(key: str) -> None:
        """Sleep for a moment."""
        time.sleep(NAP)

    @app.task(name="step", key="key", shared=False, bind=True)
    def step(self: Any, key: str, n: int, seconds: float) -> None:
        """Sleep for a while, and record when."""
        with Recorder(os.environ[LOG]).run(key, n, self.request.id, worker=self.request.hostname):
            time.sleep(seconds)

    app.finalize()
    return app


@cache
def _log(path: str) -> int:
    """Return a file descriptor that appends; children of a pool inherit it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def write_slots() -> None:
    """Record the slots that this worker gains and loses."""
    log = SlotLog(Path(os.environ[LOG]))
    slots_gained.connect(lambda sender, slots, **_: log.write("gained", sender, slots), weak=False)
    slots_lost.connect(lambda sender, slots, **_: log.write("lost", sender, slots), weak=False)


def write_statements(path: str) -> None:
    """Record the verb and the table of each statement for a database."""
    run, log = Link._run, _log(path)

    def recorded(self: Link, statement: str, said: Parameters) -> Any:
        table = re.search(r"sticky_[a-z_]+", statement)
        verb = statement.split()[0].strip("(")
        os.write(log, f"{verb} {table[0] if table else ''}".strip().encode() + b"\n")
        return run(self, statement, said)

    Link._run = recorded  # type: ignore[method-assign]


if STATEMENTS in os.environ:
    write_statements(os.environ[STATEMENTS])
if URL in os.environ:
    app = make_app(os.environ[URL], os.environ[KEYED], os.environ.get("BENCH_RUN"))
    write_slots()
