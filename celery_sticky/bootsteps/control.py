"""Remote control: `celery inspect sticky`. Importing this module registers the command, which the CLI does by itself.

A worker imports it because `Membership` requires the step `Control`.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker.control import inspect_command


class Control(bootsteps.Step):
    """Registers the command in a worker."""


@inspect_command()
def sticky(state: Any, **_: Any) -> dict[str, Any]:
    """Keyspaces, slots and lease of a worker that takes part in celery-sticky."""
    context = getattr(state.consumer.controller, "sticky", None)
    described: dict[str, Any] = (
        context.describe() if context is not None else {"worker": state.hostname, "keyspaces": {}}
    )
    return described


@inspect_command()
def sticky_jobs(state: Any, **_: Any) -> dict[str, Any]:
    """Jobs that run in a worker, by keyspace."""
    context = getattr(state.consumer.controller, "sticky", None)
    jobs = getattr(context, "jobs", None)
    described: dict[str, Any] = jobs.describe() if jobs is not None else {}
    return described
