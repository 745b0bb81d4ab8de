"""The app of workers with jobs that only wait: `celery -A benchmarks.jobs_app worker`.

It is separate from the other app, whose workers have no job host.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any

from benchmarks import app as plain
from benchmarks.app import LOG, URL
from celery_sticky import Job, Sticky
from celery_sticky.cli.verify.bad_jobs import declare_bad
from celery_sticky.keys import DEFAULT_KEYSPACE

JOB = "idle"


def declare(app: Any) -> Sticky:
    """Declare the jobs on an app."""
    sticky = Sticky(app)

    @sticky.job(JOB)
    async def idle(job: Job) -> None:
        """Wait, and record the start and the end."""
        write("+", job.key)
        try:
            async for _ in job.inbox:
                pass
        finally:
            write("-", job.key)

    declare_bad(sticky, DEFAULT_KEYSPACE, lambda job: nullcontext())
    return sticky


def write(sign: str, key: str) -> None:
    """Append a line to the file that all job hosts write."""
    line = f"{sign}{key} {time.monotonic_ns()}\n".encode()
    file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


if URL in os.environ:
    app = plain.app
    declare(app)
