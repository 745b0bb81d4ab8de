"""The app of the run: tasks that record when they ran, and some that fail on purpose."""

from __future__ import annotations

import os
import signal
import time
import zlib
from contextlib import AbstractContextManager
from typing import Any

from celery import Celery, Task
from kombu import Queue

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.bad_jobs import START_TIMEOUT, STOP_TIMEOUT, WATCHDOG
from celery_sticky.cli.verify.jobs import declare
from celery_sticky.cli.verify.placed import NAME, make_keyspace
from celery_sticky.cli.verify.site import Mode, Site, queue_of
from celery_sticky.testing.recorder import Recorder

ATTEMPTS = 5
"""Starts after which a poison message is buried."""
VISIBILITY = 6
"""Seconds after which plain Celery redelivers unacknowledged messages (visibility timeout)."""
SLICE = 0.05
"""Longest single sleep of a task, in seconds. Pools without processes can end a task only between two sleeps."""

RECORD, RETRY, RAISE, POISON = "verify.record", "verify.retry", "verify.raise", "verify.poison"


class OnPurpose(Exception):
    """Raised by tasks that fail on purpose."""


QUICKLY = {"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
"""Retry policy for results: so few retries that some results are lost while the backend is away."""


def make_app(site: Site, *, worker: bool = False) -> Celery:
    """Return the app. With `worker`, it also stores results if the run has a result backend."""
    app = Celery("verify", broker=site.broker, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "socket_timeout": 5,
            "socket_connect_timeout": 5,
            **site.options,
        },
        task_ignore_result=not site.results,
        result_backend=site.results if worker and site.results else None,
        result_backend_transport_options={"retry_policy": QUICKLY},
        task_publish_retry=False,  # a repeated send would be a duplicate by the sender, not by the workers
    )
    if site.mode is Mode.STICKY:
        _stick(app, site)
    else:
        _plain(app, site)
    _register(app, site)
    return app


def _stick(app: Celery, site: Site) -> None:
    app.conf.update(
        worker_enable_remote_control=False,
        sticky_store=site.store or None,
        sticky_keyspaces={site.keyspace: site.slots},
        sticky_slots=site.slots,
        sticky_lease_ttl=site.ttl,
        sticky_lease_margin=site.margin,
        sticky_settle=0.5,
        sticky_max_attempts=ATTEMPTS,
        sticky_broker_grace=site.ttl,
        sticky_loop_timeout=site.ttl,
        sticky_runtime_dir=site.folder,
        sticky_job_start_timeout=START_TIMEOUT,
        sticky_job_stop_timeout=STOP_TIMEOUT,
        sticky_job_watchdog=WATCHDOG,
    )
    sticky = Sticky(app)
    if site.placed is not None:
        sticky.keyspace(make_keyspace(site.placed))
    if site.jobs:
        declare(sticky, site)


def _plain(app: Celery, site: Site) -> None:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=queue_of(0),
        task_queues=[Queue(queue_of(index)) for index in range(site.workers if site.mode is Mode.HASH else 1)],
    )
    app.conf.broker_transport_options["visibility_timeout"] = VISIBILITY


def _register(app: Celery, site: Site) -> None:
    recorder = Recorder(site.history)
    options: dict[str, Any] = {"shared": False, "bind": True}
    if site.mode is Mode.STICKY:
        options |= {"key": "key", "keyspace": site.keyspace}

    @app.task(name=RECORD, **options)
    def record(self: Task, key: str, n: int, seconds: float) -> None:
        with recorded(recorder, self, key, n):
            nap(seconds)

    @app.task(name=RETRY, max_retries=1, **options)
    def retry(self: Task, key: str, n: int, seconds: float) -> None:
        with recorded(recorder, self, key, n):
            nap(seconds)
            if self.request.retries == 0:
                raise self.retry(countdown=0.5)

    @app.task(name=RAISE, **options)
    def fail(self: Task, key: str, n: int, seconds: float) -> None:
        with recorded(recorder, self, key, n):
            nap(seconds)
        raise OnPurpose

    @app.task(name=POISON, **options)
    def poison(self: Task, key: str, n: int, seconds: float) -> None:
        with recorded(recorder, self, key, n):
            os.kill(os.getpid(), signal.SIGKILL)


def recorded(recorder: Recorder, task: Task, key: str, n: int) -> AbstractContextManager[None]:
    """Record one run of `task` while the block is open."""
    sticky = getattr(task.request, "sticky", None)
    return recorder.run(
        key,
        n,
        task.request.id,
        worker=str(task.request.hostname),
        slot=sticky.slot if sticky is not None and sticky.keyspace != NAME else None,  # else the epoch is per key
        epoch=getattr(sticky, "epoch", None),
        attempt=getattr(sticky, "attempt", None) or 0,
    )


def nap(seconds: float) -> None:
    """Sleep in slices, so that a pool without processes can end the task between two of them."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(SLICE, left))  # the task itself


def hashed(key: str, workers: int) -> int:
    """Return the index of the worker that a key belongs to, for plain Celery with one queue for each worker."""
    return zlib.crc32(key.encode()) % workers
