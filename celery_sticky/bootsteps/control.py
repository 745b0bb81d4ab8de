"""Remote control: `celery inspect sticky`, and others. Importing this module registers the commands, as the CLI does.

A worker imports it because `Membership` requires the step `Control`.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker.control import control_command, inspect_command


class Control(bootsteps.Step):
    """Registers the commands in a worker."""


@inspect_command()
def sticky(state: Any, **_: Any) -> dict[str, Any]:
    """Keyspaces, slots and lease of a worker that takes part in celery-sticky."""
    context = getattr(state.consumer.controller, "sticky", None)
    return _described(context, state.hostname)


@inspect_command()
def sticky_jobs(state: Any, **_: Any) -> dict[str, Any]:
    """Jobs that run in a worker, by keyspace."""
    context = getattr(state.consumer.controller, "sticky", None)
    jobs = getattr(context, "jobs", None)
    described: dict[str, Any] = jobs.describe() if jobs is not None else {}
    return described


@control_command(args=[("undo", bool)], signature="[undo]")
def sticky_drain(state: Any, undo: bool = False, **_: Any) -> dict[str, Any]:
    """Give away all slots, jobs and placed keys in order, and take none until this is undone or the worker restarts."""
    context = getattr(state.consumer.controller, "sticky", None)
    if context is not None:
        context.drain(undo=undo)
    return _described(context, state.hostname)


def _described(context: Any, hostname: str) -> dict[str, Any]:
    described: dict[str, Any] = context.describe() if context is not None else {"worker": hostname, "keyspaces": {}}
    return described
