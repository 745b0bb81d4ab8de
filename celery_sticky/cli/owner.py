"""`celery sticky owner KEY`: show a key's queue and worker; in a placed keyspace also the reason."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import age_of, dash, json_option, seconds, show, table
from celery_sticky.errors import AssignmentFailed, NotPinned, NoWorker
from celery_sticky.keys import DEFAULT_KEYSPACE, check_keyspace, queue_name, slot_for
from celery_sticky.keyspace import Keyspace, check_same, pinner, placement_of, workers_of
from celery_sticky.ownership.view import View
from celery_sticky.queues import Depth
from celery_sticky.slots import WorkerQueue


@click.command(cls=CeleryCommand)
@click.argument("key")
@click.option("--keyspace", metavar="NAME", default=DEFAULT_KEYSPACE, show_default=True)
@json_option
@click.pass_context
def owner(ctx: click.Context, key: str, keyspace: str, as_json: bool) -> None:
    """Show which worker owns KEY; exit with 1 if none does."""
    with Session(ctx.obj.app) as session:
        facts = _facts(session, key, check_keyspace(keyspace))
    show(ctx.obj, facts, _draw, as_json=as_json)
    ctx.exit(0 if facts["owner"] else 1)


def _facts(session: Session, key: str, keyspace: str) -> dict[str, Any]:
    reading = session.store(keyspace).read()
    view, slots = reading.view, session.slots_of(keyspace, reading)
    slot = slot_for(key, slots)
    place: int | WorkerQueue | None = slot
    found: dict[str, Any] = {"key": key, "keyspace": keyspace, "slot": slot, "slots": slots, "by": "slot"}
    if (placed := session.settings.placed_keyspace(keyspace)) is not None:
        place, said = _placed(session, placed, key, view, slots)
        found |= said
    match place:
        case int() if view is not None:
            found |= {"owner": view.owner[slot], "target": view.target[slot], "epoch": view.epoch[slot]}
        case WorkerQueue(worker):
            found |= {"owner": worker, "target": worker, "epoch": None}
        case _:
            found |= {"owner": None, "target": None, "epoch": None}
    depth = Depth(0, 0, 0, None)
    if place is not None:
        depth = session.queues.depths([(keyspace, place)])[keyspace, place]
    return {
        **found,
        "queue": queue_name(keyspace, place, session.settings.key_prefix) if place is not None else None,
        "waiting": depth.waiting,
        "deferred": depth.deferred,
        "in_flight": depth.in_flight,
        "oldest_seconds": age_of(depth.oldest, time.time()),
    }


def _placed(
    session: Session, keyspace: Keyspace, key: str, view: View | None, slots: int
) -> tuple[int | WorkerQueue | None, dict[str, Any]]:
    """Return the queue that a key of a placed keyspace belongs in, the reason, and the worker that has claimed it."""
    if view is None:
        return None, {"by": None, "nowhere": "no worker has taken part in the keyspace yet", "claimed_by": None}
    check_same(keyspace, view)
    placement_store = session.placement_store(keyspace.name)
    pin = placement_store.look((view.version, view.generation), [key]).pins.get(key)
    holder = placement_store.holder(key)
    claimed_by = next((member.name for member in view.members.values() if member.incarnation == holder), None)
    found: dict[str, Any] = {"by": "slot", "nowhere": None, "claimed_by": claimed_by}
    if keyspace.pins and pinner(view, pin) is not None:
        found["by"] = "pin"
    elif keyspace.assign is not None:
        found["by"] = keyspace.assignment
    try:
        return placement_of(keyspace, key, slots, view, workers_of(view), pin), found
    except (NotPinned, NoWorker, AssignmentFailed) as error:
        return None, {**found, "by": None, "nowhere": str(error)}


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("", "")
    made.show_header = False
    made.add_row("key", f"{facts['key']} (keyspace {facts['keyspace']})")
    if facts["by"] == "slot":
        made.add_row("slot", f"{facts['slot']} of {facts['slots']}, queue {facts['queue']}")
    elif facts["queue"]:
        made.add_row("queue", facts["queue"])
    made.add_row("owner", _owner(facts))
    if facts["target"] != facts["owner"]:
        made.add_row("moves to", dash(facts["target"]))
    if "claimed_by" in facts:
        made.add_row("claimed by", dash(facts["claimed_by"]))
    if facts["queue"]:
        oldest = f", oldest {seconds(facts['oldest_seconds'])}" if facts["oldest_seconds"] is not None else ""
        deferred, in_flight = dash(facts["deferred"]), dash(facts["in_flight"])
        counts = f"{facts['waiting']} waiting{oldest}, {deferred} deferred, {in_flight} in flight"
        made.add_row("messages", f"{counts} (of all keys of this {'slot' if facts['by'] == 'slot' else 'queue'})")
    yield made


def _owner(facts: Mapping[str, Any]) -> str:
    if not facts["owner"]:
        return f"nobody: {facts['nowhere']}" if facts.get("nowhere") else "nobody"
    match facts["by"]:
        case "slot":
            return f"{facts['owner']}, epoch {facts['epoch']}"
        case "pin":
            return f"{facts['owner']}, which has pinned it"
        case function:
            return f"{facts['owner']}, chosen by {function}"
