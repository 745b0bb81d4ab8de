"""`celery sticky owner KEY`: from a key to its slot, its queue and the worker that owns it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import age_of, dash, json_option, seconds, show, table
from celery_sticky.keys import DEFAULT_KEYSPACE, check_keyspace, queue_name, slot_for


@click.command(cls=CeleryCommand)
@click.argument("key")
@click.option("--keyspace", metavar="NAME", default=DEFAULT_KEYSPACE, show_default=True)
@json_option
@click.pass_context
def owner(ctx: click.Context, key: str, keyspace: str, as_json: bool) -> None:
    """Show who owns KEY; exit with 1 if nobody does."""
    with Session(ctx.obj.app) as session:
        facts = _facts(session, key, check_keyspace(keyspace))
    show(ctx.obj, facts, _draw, as_json=as_json)
    ctx.exit(0 if facts["owner"] else 1)


def _facts(session: Session, key: str, keyspace: str) -> dict[str, Any]:
    reading = session.store(keyspace).read()
    view, slots = reading.view, session.slots_of(keyspace, reading)
    slot = slot_for(key, slots)
    depth = session.queues.depth(keyspace, (slot,))[slot]
    return {
        "key": key,
        "keyspace": keyspace,
        "slot": slot,
        "slots": slots,
        "queue": queue_name(keyspace, slot, session.settings.key_prefix),
        "owner": view.owner[slot] if view else None,
        "target": view.target[slot] if view else None,
        "epoch": view.epoch[slot] if view else None,
        "waiting": depth.waiting,
        "deferred": depth.deferred,
        "in_flight": depth.in_flight,
        "oldest_seconds": age_of(depth.oldest, time.time()),
    }


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("", "")
    made.show_header = False
    made.add_row("key", f"{facts['key']} (keyspace {facts['keyspace']})")
    made.add_row("slot", f"{facts['slot']} of {facts['slots']}, queue {facts['queue']}")
    made.add_row("owner", f"{facts['owner']}, epoch {facts['epoch']}" if facts["owner"] else "nobody")
    if facts["target"] != facts["owner"]:
        made.add_row("moves to", dash(facts["target"]))
    oldest = f", oldest {seconds(facts['oldest_seconds'])}" if facts["oldest_seconds"] is not None else ""
    counts = f"{facts['waiting']} waiting{oldest}, {facts['deferred']} deferred, {facts['in_flight']} in flight"
    made.add_row("messages", f"{counts} (of all keys of this slot)")
    yield made
