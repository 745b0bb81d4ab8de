"""`celery sticky status`: show members, slots, waiting messages, jobs and moving slots. Works without live workers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.answers import ask, beating, stall_text
from celery_sticky.cli.failures import attempt, outcome, result_of, said
from celery_sticky.cli.job_counts import job_problems, line, tally
from celery_sticky.cli.members import members_of, members_table, said_of
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import age_of, dash, json_option, keyspace_option, problems, seconds, show, table, total
from celery_sticky.errors import SlotBroken, StickyError
from celery_sticky.jobs.shown import Owners
from celery_sticky.ownership.view import View
from celery_sticky.queues import Depth
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.stores import Reading
from celery_sticky.stores.jobs import JobCounts

MOVES_SHOWN = 20
NOTHING = Depth(0, 0, 0, None)


@click.command(cls=CeleryCommand)
@keyspace_option
@click.option("--timeout", default=1.0, show_default=True, help="Seconds to wait for workers to answer.")
@json_option
@click.pass_context
def status(ctx: click.Context, keyspace: str | None, timeout: float, as_json: bool) -> None:
    """Show members, slots, queues and jobs of each keyspace; exit with 1 if something is stuck."""
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
        keyspace: {m.incarnation for m in view.members.values() if said_of(answers, keyspace, m.name) is None}
        for keyspace, view in views.items()
    }
    alive = attempt(failed, "heartbeats", lambda: beating(session, readings, doubtful)) or set()
    counts = _count(session, readings)
    found = [_keyspace(session, keyspace, reading, answers, alive, counts) for keyspace, reading in readings.items()]
    failed += counts.problems
    return {"keyspaces": found, "problems": [*failed, *(text for one in found for text in _problems(one))]}


def _read(session: Session, keyspaces: list[str], failed: list[str]) -> dict[str, Reading]:
    """Read every readable keyspace. If the store is unavailable, raise: there is nothing to show."""
    readings = {}
    for keyspace, reading in session.read(keyspaces).items():
        if isinstance(reading, StickyError):
            failed.append(f"keyspace {keyspace}: {reading}")
        else:
            readings[keyspace] = reading
    return readings


@dataclass(frozen=True, slots=True)
class Counts:
    """The messages and the jobs of the keyspaces."""

    depths: dict[str, dict[Slot, Depth]]
    """Keyspace -> its queues; those that could not be counted have no messages."""
    dead: Mapping[str, int | SlotBroken] | Exception
    jobs: Mapping[str, JobCounts]
    """Without the keyspaces whose jobs could not be counted."""
    problems: list[str]


def _count(session: Session, readings: Mapping[str, Reading]) -> Counts:
    """Count the messages of all keyspaces together: what is asked of each alone takes its time as often."""
    placed = [keyspace for keyspace in readings if session.settings.placed_keyspace(keyspace) is not None]
    enlisted = outcome(lambda: session.enlisted(placed)) if placed else {}
    names = {keyspace: enlisted if isinstance(enlisted, Exception) else enlisted[keyspace] for keyspace in placed}
    places: dict[str, list[Slot]] = {}
    for keyspace, reading in readings.items():
        queues = names.get(keyspace, ())
        workers = () if isinstance(queues, Exception) else map(WorkerQueue, queues)
        places[keyspace] = [*range(session.slots_of(keyspace, reading)), *workers]
    slots = [(keyspace, place) for keyspace, some in places.items() for place in some]
    found = outcome(lambda: session.queues.depths(slots))
    problems: list[str] = []
    for keyspace in places:
        result_of(problems, f"placement of keyspace {keyspace}", names.get(keyspace))
        result_of(problems, f"slot queues of keyspace {keyspace}", found)
    counted = {} if isinstance(found, Exception) else found
    depths = {
        keyspace: {place: counted.get((keyspace, place), NOTHING) for place in some}
        for keyspace, some in places.items()
    }
    dead = outcome(lambda: session.queues.dead_counts(list(readings)))
    return Counts(depths, dead, _count_jobs(session, readings, problems), problems)


def _count_jobs(session: Session, readings: Mapping[str, Reading], problems: list[str]) -> dict[str, JobCounts]:
    found = outcome(lambda: session.job_counts(list(readings)))
    counts = {}
    for keyspace in readings:
        answer = found if isinstance(found, Exception) else found[keyspace]
        if (counted := result_of(problems, f"jobs of keyspace {keyspace}", answer)) is not None:
            counts[keyspace] = counted
    return counts


def _keyspace(
    session: Session,
    keyspace: str,
    reading: Reading,
    answers: Mapping[str, Any],
    alive: set[str],
    counts: Counts,
) -> dict[str, Any]:
    view, now = reading.view, time.time()
    slots = session.slots_of(keyspace, reading)
    placed = session.settings.placed_keyspace(keyspace)
    depths = counts.depths[keyspace]
    members = members_of(keyspace, view, depths, answers, alive, now) if view else []
    jobs, living = counts.jobs.get(keyspace), frozenset(one["name"] for one in members if one["alive"])
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
        **_dead(counts.dead, keyspace),
        "broken": [{"slot": slot, "error": depth.broken} for slot, depth in depths.items() if depth.broken],
        "jobs": tally(jobs, Owners(view, living, placed)) if jobs is not None else None,
        "members": members,
        "moving": _moving(view) if view else [],
    }


def _dead(counts: Mapping[str, int | SlotBroken] | Exception, keyspace: str) -> dict[str, Any]:
    count = counts if isinstance(counts, Exception) else counts[keyspace]
    if isinstance(count, Exception):
        return {"dead": None, "dead_error": said(count)}
    return {"dead": count, "dead_error": None}


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
    for text, remedy in job_problems(found["jobs"]) if found["jobs"] else ():
        yield f"keyspace {name}: {text}: {remedy}"


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for found in facts["keyspaces"]:
        yield Text.assemble((f"keyspace {found['keyspace']}", "bold"), f": {_headline(found)}")
        yield _messages(found)
        yield line(found["jobs"])
        if found["members"]:
            yield members_table(found["members"])
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
