"""What all runs of a job host share, and what they have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from celery_sticky.jobs.handler import Job, JobSpec, ThreadJob
from celery_sticky.jobs.host.tasks import RunTasks
from celery_sticky.jobs.host.threads import HandlerThreads
from celery_sticky.jobs.inbox import Inbox, Notification, call_in_loop
from celery_sticky.jobs.saves import Saves
from celery_sticky.jobs.thread_inbox import ThreadInbox
from celery_sticky.jobs.wire import Calls, Ended, Failed, Noted, Start, Started, Taken, Unhandled, Waits

MAX_ERROR = 2000
"""Maximum length of an error reported to the worker, in characters."""

Answer = Waits | Calls | Started | Failed | Ended | Taken | Noted | Unhandled


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all runs of a host share."""

    say: Callable[[Answer], None]
    threads: HandlerThreads
    """Runs code that is not async."""
    tasks: RunTasks
    logger: logging.Logger
    """The logger behind `job.logger`."""
    saves: Saves


class HostedRun(Protocol):
    """A run of a job. It is over when it has sent `Failed` or `Ended`."""

    def notify(self, note: Notification) -> None:
        """Hand a notification to the job."""

    def stop(self) -> None:
        """Stop the job."""

    def end(self, error: str) -> None:
        """End the job as if it had ended by itself, with this error or without one."""


def error_text(error: BaseException) -> str:
    """Return the error's type and message in one line."""
    try:
        message = str(error)
    except Exception as exc:
        message = f"(its text cannot be read: {type(exc).__name__})"
    name, text = type(error).__name__, " ".join(message.split())
    line = f"{name}: {text}" if text else name
    return line[:MAX_ERROR].encode(errors="backslashreplace").decode()[:MAX_ERROR]


def job_of(
    spec: JobSpec,
    start: Start,
    here: Surroundings,
    started: Callable[[], None],
    inbox: Inbox,
    end: Callable[[str], None],
) -> Job:
    """Return the `Job` of a run; `end` is called in the loop."""
    loop = asyncio.get_running_loop()
    return Job(inbox=inbox, started=started, **_common(spec, start, here), end=partial(call_in_loop, loop, end))


def thread_job_of(
    spec: JobSpec,
    start: Start,
    here: Surroundings,
    started: Callable[[], None],
    inbox: ThreadInbox,
    end: Callable[[str], None],
) -> ThreadJob:
    """Return the `ThreadJob` of a run; `started` and `end` are called in the loop."""
    in_loop = partial(partial, call_in_loop, asyncio.get_running_loop())
    return ThreadJob(inbox=inbox, started=in_loop(started), **_common(spec, start, here), end=in_loop(end))


def _common(spec: JobSpec, start: Start, here: Surroundings) -> dict[str, Any]:
    return {  # shares the values of all runs of the job instead of copying them
        "name": spec.name,
        "key": start.key,
        "keyspace": spec.keyspace,
        "id": start.id,
        "epoch": start.epoch,
        "attempt": start.attempt,
        "payload": start.payload,
        "worker": start.worker,
        "logger": here.logger,
        "saved": start.saved,
        "saves": here.saves,
        "ref": start.ref,
    }
