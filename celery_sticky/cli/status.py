"""`celery sticky status`: show members, their slots, waiting messages and moving slots. Works without live workers."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.answers import ask, beating, stall_of, stall_text
from celery_sticky.cli.failures import attempt, failures, said
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import age_of, dash, json_option, keyspace_option, problems, seconds, show, table, total
from celery_sticky.errors import DocumentDamaged, DocumentTooNew, StickyError, StoreRefused
from celery_sticky.keys import Slot, worker_queue
from celery_sticky.ownership.view import Member, View
from celery_sticky.queues import Depth
from celery_sticky.stores import Reading

MOVES_SHOWN = 20


@click.command(cls=CeleryCommand)
@keyspace_option
@click.option("--timeout", default=1.0, show_default=True, help="Seconds to wait for workers to answer.")
@json_option
@click.pass_context
def status(ctx: click.Context, keyspace: str | None, timeout: float, as_json: bool) -> None:
    """Show members, slots and queues of each keyspace; exit with 1 if something is stuck."""
    with Session(ctx.obj.app) as session:
        facts = _facts(session, session.only(keyspace), timeout)
    show(ctx.obj, facts, _draw, as_json=as_json)
    ctx.exit(1 if facts["problems"] else 0)


def _facts(session: Session, keyspaces: list[str], timeout: float) -> dict[str, Any]:
    failed: list[str] = []
    readings = _read(session, keyspaces, failed)
    views = {keyspace: reading.view for keyspace, reading in readings.items() if reading.view is not None}
    names = {name for view in views.values() for name in view.members}
    answers = dict(attempt(failed, "workers cannot be asked", lambda: ask(session.app, names, timeout)) or ())
    doubtful = {
        keyspace: {m.incarnation for m in view.members.values() if _said(answers, keyspace, m.name) is None}
        for keyspace, view in views.items()
    }
    alive = attempt(failed, "heartbeats", lambda: beating(session, readings, doubtful)) or set()
    found = [_keyspace(session, keyspace, reading, answers, alive, failed) for keyspace, reading in readings.items()]
    return {"keyspaces": found, "problems": [*failed, *(text for one in found for text in _problems(one))]}


def _read(session: Session, keyspaces: list[str], failed: list[str]) -> dict[str, Reading]:
    """Read every readable keyspace. If the store is unavailable, raise: there is nothing to show."""
    readings = {}
    for keyspace in keyspaces:
        try:
            readings[keyspace] = session.store(keyspace).read()
        except StickyError as error:
            if not isinstance(error, StoreRefused | DocumentDamaged | DocumentTooNew):
                raise
            failed.append(f"keyspace {keyspace}: {error}")
    return readings


def _said(answers: Mapping[str, Any], keyspace: str, name: str) -> dict[str, Any] | None:
    said: dict[str, Any] | None = answers.get(name, {}).get("keyspaces", {}).get(keyspace)
    return said


def _keyspace(
    session: Session,
    keyspace: str,
    reading: Reading,
    answers: Mapping[str, Any],
    alive: set[str],
    failed: list[str],
) -> dict[str, Any]:
    view, now = reading.view, time.time()
    slots = session.slots_of(keyspace, reading)
    placed = session.settings.placed_keyspace(keyspace)
    enlisted: Collection[str] = ()
    if placed is not None:
        enlisted = (
            attempt(failed, f"placement of keyspace {keyspace}", session.placement_store(keyspace).enlisted) or ()
        )
    places = (*range(slots), *(worker_queue(name) for name in enlisted))
    what = f"slot queues of keyspace {keyspace}"
    depths = attempt(failed, what, lambda: session.queues.depth(keyspace, places))
    if depths is None:
        depths = dict.fromkeys(places, Depth(0, 0, 0, None))
    ages = [age for depth in depths.values() if (age := age_of(depth.oldest, now)) is not None]
    return {
        "keyspace": keyspace,
        "slots": slots,
        "placed_by": placed.placed_by if placed is not None else None,
        "version": view.version if view else None,
        "generation": view.generation if view else None,
        "store_lost": view is not None and view.store_id != reading.store_id,
        "unowned": len(view.unowned) if view else slots,
        "waiting": sum(depth.waiting for depth in depths.values()),
        "deferred": total(depth.deferred for depth in depths.values()),
        "in_flight": total(depth.in_flight for depth in depths.values()),
        "oldest_seconds": max(ages, default=None),
        **_dead(session, keyspace),
        "broken": [{"slot": slot, "error": depth.broken} for slot, depth in depths.items() if depth.broken],
        "members": [
            {
                **_member(member, view, _depths_of(member.name, view, depths)),
                **_life(_said(answers, keyspace, member.name), member.incarnation, alive),
                **_stall(member, answers, now),
            }
            for _, member in sorted(view.members.items())
        ]
        if view
        else [],
        "moving": _moving(view) if view else [],
    }


def _depths_of(name: str, view: View, depths: Mapping[Slot, Depth]) -> list[Depth]:
    """Return the depths of a worker's slot queues, and of its worker queue if it has one."""
    mine = [depths[slot] for slot, owner in enumerate(view.owner) if owner == name]
    own_queue = depths.get(worker_queue(name))
    return mine if own_queue is None else [*mine, own_queue]


def _member(member: Member, view: View, depths: Collection[Depth]) -> dict[str, Any]:
    return {
        "name": member.name,
        "incarnation": member.incarnation,
        "state": member.state.value,
        "weight": member.weight,
        "version": member.attributes.get("version"),
        "slots": view.owner.count(member.name),
        "giving": len(view.giving(member.name)),
        "waiting": sum(depth.waiting for depth in depths),
        "in_flight": total(depth.in_flight for depth in depths),
    }


def _dead(session: Session, keyspace: str) -> dict[str, Any]:
    try:
        return {"dead": session.queues.dead_count(keyspace), "dead_error": None}
    except failures() as error:
        return {"dead": None, "dead_error": said(error)}


def _life(said: dict[str, Any] | None, incarnation: str, alive: set[str]) -> dict[str, Any]:
    """Return whether a member is alive. Facts that only the member knows are None if it did not answer."""
    if said is None:
        return {"alive": incarnation in alive, "running": None, "lease_age": None}
    return {"alive": True, "running": said["running"], "lease_age": said["lease_age"]}


def _stall(member: Member, answers: Mapping[str, Any], now: float) -> dict[str, Any]:
    age, why = stall_of(member, answers.get(member.name), now)
    return {"answer_age": age, "stalled": why}


def _moving(view: View) -> list[dict[str, Any]]:
    pairs = enumerate(zip(view.owner, view.target, strict=True))
    return [
        {"slot": slot, "from": owner, "to": target, "epoch": view.epoch[slot]}
        for slot, (owner, target) in pairs
        if owner != target
    ]


def _problems(found: Mapping[str, Any]) -> Iterable[str]:
    name = found["keyspace"]
    if found["store_lost"]:
        yield f"keyspace {name}: the document comes from another run of the store; workers will replace it"
    for member in found["members"]:
        if not member["alive"]:
            yield f"keyspace {name}: {member['name']} does not answer and sends no heartbeats"
        if member["stalled"]:
            yield f"keyspace {name}: {stall_text(member['name'], member['answer_age'], member['stalled'])}"
    for one in found["broken"]:
        yield f"keyspace {name}: slot {one['slot']} is blocked: {one['error']}"
    if found["dead_error"]:
        yield f"keyspace {name}: {found['dead_error']}"
    if found["unowned"] and (found["waiting"] or found["deferred"]):
        yield f"keyspace {name}: messages wait, but {found['unowned']} of {found['slots']} slots have no owner"


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for found in facts["keyspaces"]:
        yield Text.assemble((f"keyspace {found['keyspace']}", "bold"), f": {_headline(found)}")
        yield _messages(found)
        if found["members"]:
            yield _members(found["members"])
        if found["moving"]:
            moving = found["moving"][:MOVES_SHOWN]
            yield f"{len(found['moving'])} slots are moving" + (":" if moving else "")
            moves = table("slot", "from", "to", "epoch", right=("slot", "epoch"))
            for move in moving:
                moves.add_row(str(move["slot"]), dash(move["from"]), dash(move["to"]), str(move["epoch"]))
            yield moves
        yield ""
    yield from problems(facts)


def _headline(found: Mapping[str, Any]) -> str:
    document = "no document yet"
    if found["version"] is not None:
        document = f"version {found['version']} (generation {found['generation']})"
    unowned = f"{found['unowned']} of them without an owner" if found["unowned"] else "all owned"
    placed = f" · keys placed by {found['placed_by']}" if found["placed_by"] else ""
    return f"{found['slots']} slots, {unowned} · {document}{placed}"


def _messages(found: Mapping[str, Any]) -> str:
    oldest = f" (oldest {seconds(found['oldest_seconds'])})" if found["oldest_seconds"] is not None else ""
    deferred, in_flight = dash(found["deferred"]), dash(found["in_flight"])
    counts = f"{found['waiting']} waiting{oldest}, {deferred} deferred, {in_flight} in flight"
    return f"messages: {counts}, {dash(found['dead'])} dead"


def _members(members: Iterable[Mapping[str, Any]]) -> RenderableType:
    numbers = ("slots", "giving away", "running", "fetched", "waiting", "lease age", "last answer")
    made = table("worker", "state", *numbers, "version", right=numbers)
    for member in members:
        state = "silent" if not member["alive"] else "stalled" if member["stalled"] else member["state"]
        lease = (
            seconds(member["lease_age"])
            if member["lease_age"] is not None
            else "heartbeats"
            if member["alive"]
            else "-"
        )
        made.add_row(
            member["name"],
            Text(state, style="green" if state == "active" else "yellow" if state == "leaving" else "bold red"),
            str(member["slots"]),
            str(member["giving"]),
            dash(member["running"]),
            dash(member["in_flight"]),
            str(member["waiting"]),
            lease,
            seconds(member["answer_age"]) if member["answer_age"] is not None else "-",
            dash(member["version"]),
        )
    return made
