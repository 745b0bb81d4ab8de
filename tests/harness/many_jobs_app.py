"""A worker app that has a job in each of its keyspaces."""

from __future__ import annotations

import os

from celery import Celery

from celery_sticky import Job, Sticky
from harness.app import AppConfig, make_app

NAME = "waits"


def register(app: Celery) -> Sticky:
    """Declare the job in each keyspace."""
    sticky = Sticky(app)

    async def waits(job: Job) -> None:
        job.started()
        async for _ in job.inbox:
            return

    for keyspace in sticky.wiring.settings.keyspaces or ():
        sticky.job(NAME, keyspace=keyspace)(waits)
    return sticky


def make() -> Celery:
    """Return the app of a worker process."""
    app = make_app(AppConfig.from_environ(os.environ))
    register(app)
    return app


if "STICKY_APP_BROKER" in os.environ:
    app = make()
