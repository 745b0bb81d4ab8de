"""`celery sticky doctor`: show settings, servers, members, queues and tasks, and report problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.checkup import (
    app_findings,
    guarded,
    job_findings,
    member_findings,
    task_findings,
)
from celery_sticky.cli.failures import failures, said
from celery_sticky.cli.servers import access_findings, leftovers, server_facts, server_findings
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import dash, json_option, show, table
from celery_sticky.delivery.dead_trimmer import MANY
from celery_sticky.errors import SlotBroken, StickyError
from celery_sticky.findings import Finding, Level, note, wrong
from celery_sticky.settings import NAMES, SETTING, Settings
from celery_sticky.wiring import sticky_entries

LOOKS = {Level.WRONG: ("✗", "bold red"), Level.NOTE: ("!", "yellow")}


@click.command(cls=CeleryCommand)
@click.option("--timeout", default=1.0, show_default=True, help="Seconds to wait for workers to answer.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, timeout: float, as_json: bool) -> None:
    """Check the whole installation; exit with 1 if something is wrong."""
    with Session(ctx.obj.app) as session:
        facts = _facts(session, timeout)
    show(ctx.obj, facts, _draw, as_json=as_json)
    ctx.exit(0 if facts["ok"] else 1)


def _facts(session: Session, timeout: float) -> dict[str, Any]:
    servers = {"broker": session.broker}
    if session.store_at.as_uri() != session.broker.as_uri():
        servers["store"] = session.store_at
    examined = {what: _examine(connection) for what, connection in servers.items()}
    away = {what for what, facts in examined.items() if "error" in facts}
    poller = [server_findings(what, facts, servers[what], session.settings) for what, facts in examined.items()]
    prefix = session.settings.key_prefix
    poller += [guarded(what, access_findings(what, at, prefix)) for what, at in servers.items() if what not in away]
    if not away:
        poller += [
            guarded("slot queues", _queue_findings(session)),
            guarded("members", member_findings(session, timeout)),
            guarded("jobs", job_findings(session)),
            guarded("slot queues", leftovers(session)),
        ]
    poller += [task_findings(session), app_findings(session)]
    findings = [finding for look in poller for finding in look]
    return {
        "ok": not any(finding.level is Level.WRONG for finding in findings),
        "findings": [{"level": finding.level.value, "text": finding.text} for finding in findings],
        "settings": _settings(session),
        "servers": examined,
        "guarantees": _guarantees(session),
        "tasks": [
            {
                "task": spec.task,
                "key": spec.source,
                "keyspace": spec.keyspace,
                "serial": spec.serial,
                "delivery": spec.delivery.value,
                "dedupe": spec.dedupe,
            }
            for _, spec in sorted(session.tasks.all().items())
        ],
    }


def _queue_findings(session: Session) -> Iterable[Finding]:
    queues = session.queues  # raises if the broker does not support slot queues
    for keyspace, count in queues.dead_counts(session.keyspaces).items():
        if isinstance(count, SlotBroken):
            yield wrong(f"slot queues: {said(count)}")
        elif count >= MANY and not session.settings.dead_bounds_of(keyspace):
            yield note(
                f"keyspace {keyspace}: {count} messages are buried and take memory at the broker: retry or drop them, "
                "or set sticky_dead_limit or sticky_dead_ttl"
            )


def _guarantees(session: Session) -> dict[str, Any]:
    try:
        return asdict(session.queues.guarantees)
    except StickyError:  # the server's finding already reports that there are no slot queues
        return {}


def _promised(guarantees: Mapping[str, Any]) -> str:
    """Return a sentence about what the slot queues guarantee."""
    if not guarantees:
        return ""
    said = {name.replace("_", " "): value for name, value in guarantees.items() if isinstance(value, bool)}
    kept = ", ".join(name if value else f"not {name}" for name, value in said.items())
    priorities = ", ".join(str(priority) for priority in guarantees["priorities"])
    return f"slot queues here: {kept}; fence by {guarantees['fence']}; priorities {priorities}"


def _examine(connection: Any) -> dict[str, Any]:
    try:
        return server_facts(connection)
    except failures() as error:
        return {"url": connection.as_uri(), "error": said(error)}


def _settings(session: Session) -> list[dict[str, Any]]:
    given = sticky_entries(session.app.conf)
    found = []
    for field in fields(Settings):
        if SETTING + field.name not in NAMES:
            continue
        value = getattr(session.settings, field.name)
        shown = session.store_at.as_uri() if field.name == "store" else dict(value) if _is_map(value) else value
        source = "app.conf" if SETTING + field.name in given else "the broker" if field.name == "store" else "default"
        found.append({"name": SETTING + field.name, "value": shown, "source": source})
    return found


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    settings = table("setting", "value", "from")
    for one in facts["settings"]:
        settings.add_row(one["name"], dash(one["value"]), "" if one["source"] == "default" else one["source"])
    yield settings
    servers = table("server", "", "")
    for what, found in facts["servers"].items():
        for number, (name, value) in enumerate(found.items()):
            servers.add_row("" if number else what, name.replace("_", " "), dash(value))
    yield from ("", servers)
    yield from ("", _promised(facts["guarantees"]), "")
    tasks = table("keyed task", "key", "keyspace", "one at a time", "delivery")
    for one in facts["tasks"]:
        tasks.add_row(
            one["task"],
            one["key"].removeprefix("its "),
            one["keyspace"],
            "yes" if one["serial"] else "no",
            one["delivery"].replace("_", " ") + (", deduplicated" if one["dedupe"] else ""),
        )
    if facts["tasks"]:
        yield from (tasks, "")
    for finding in facts["findings"]:
        sign, style = LOOKS[Level(finding["level"])]
        yield Text(f"{sign} {finding['text']}", style=style)
    if facts["ok"]:
        yield Text("✓ nothing is wrong", style="green")
