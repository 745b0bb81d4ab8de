"""`celery sticky drain WORKER`: have one live worker give everything away in order, and wait until that is done."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_sticky.cli.answers import ask
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import json_option, show
from celery_sticky.errors import StickyError

LOOK_EVERY = 0.5
"""Seconds between looks at the worker."""
ANSWER_TIMEOUT = 2.0
"""Seconds that the worker may take to answer one of them."""
SILENT = 5
"""This many looks in a row without an answer: the worker is gone."""


@click.command(cls=CeleryCommand)
@click.argument("worker")
@click.option("--undo", is_flag=True, help="Let the worker take slots and keys again.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long to wait; default: until it is done.")
@json_option
@click.pass_context
def drain(ctx: click.Context, worker: str, undo: bool, timeout: float | None, as_json: bool) -> None:
    """Have WORKER give away all slots, jobs and placed keys, and take none until this is undone or it restarts."""
    with Session(ctx.obj.app) as session:
        _ = session.queues  # raises if this broker cannot be used
        facts = _told(session.app, worker, undo=undo)
        if not undo:
            facts = _awaited(session.app, worker, facts, timeout, quiet=as_json)
    show(ctx.obj, facts, _draw_undone if undo else _draw, as_json=as_json)
    ctx.exit(0 if undo or facts["drained"] else 1)


def _told(app: Any, worker: str, *, undo: bool) -> dict[str, Any]:
    """Tell the worker; return its state.

    Raises:
        StickyError: it does not answer, or takes part in no keyspace.
    """
    replies = app.control.broadcast(
        "sticky_drain", {"undo": undo}, destination=[worker], reply=True, timeout=ANSWER_TIMEOUT, limit=1
    )
    answers = [said for reply in replies or () for said in reply.values()]
    if not answers:
        raise StickyError(
            f"worker {worker!r} does not answer: give its whole node name, as `celery sticky status` shows it"
        )
    if "keyspaces" not in answers[0]:
        raise StickyError(f"worker {worker!r} cannot be drained: {answers[0].get('error', answers[0])}")
    if not answers[0]["keyspaces"]:
        raise StickyError(f"worker {worker!r} takes part in no keyspace: there is nothing to give away")
    return _state(worker, answers[0])


def _awaited(app: Any, worker: str, facts: dict[str, Any], timeout: float | None, *, quiet: bool) -> dict[str, Any]:
    """Look at the worker until everything is given away, or the time is up; return its last state.

    Raises:
        StickyError: it has stopped to answer.
    """
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    silent, shown = 0, ""
    while not facts["drained"] and time.monotonic() < deadline:
        if not quiet and (text := _left(facts)) != shown:
            click.echo(text)
            shown = text
        time.sleep(min(LOOK_EVERY, max(0.0, deadline - time.monotonic())))  # until the next look
        answers = [said for _, said in ask(app, [worker], ANSWER_TIMEOUT)]
        silent = 0 if answers else silent + 1
        if silent == SILENT:
            raise StickyError(f"worker {worker!r} does not answer any more; a worker that restarts is not drained")
        if answers:
            facts = _state(worker, answers[0])
    return facts


def _state(worker: str, said: Mapping[str, Any]) -> dict[str, Any]:
    keyspaces = said["keyspaces"].values()
    return {
        "worker": worker,
        "drained": all(one["drained"] for one in keyspaces),
        "slots": sum(one["slots"] + one["moving"] for one in keyspaces),
        "running": sum(one["running"] for one in keyspaces),
    }


def _left(facts: Mapping[str, Any]) -> str:
    return f"{facts['worker']}: slots left {facts['slots']}, keyed tasks running {facts['running']}"


def _draw(facts: Mapping[str, Any]) -> Iterable[str]:
    if facts["drained"]:
        yield (
            f"{facts['worker']} has given everything away. It takes nothing until "
            f"`celery sticky drain --undo {facts['worker']}`, or until it restarts"
        )
    else:
        yield f"not done yet, the worker goes on: {_left(facts)}"


def _draw_undone(facts: Mapping[str, Any]) -> Iterable[str]:
    yield f"{facts['worker']} takes slots and keys again"
