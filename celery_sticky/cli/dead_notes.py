"""`celery sticky jobs dead`: list, show, retry and drop notifications that their jobs could not handle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.app import Sticky
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import dash, json_option, keyspace_option, moment, show, table
from celery_sticky.errors import StickyError
from celery_sticky.jobs.dead_notes import DeadNotes, DeadNotification

every_option = click.option("--all", "every", is_flag=True, help="All dead notifications.")
Found = tuple[str, DeadNotification]
"""The id by which the commands name it, and the notification."""


@click.group()
def dead() -> None:
    """List, show, retry or drop notifications that their jobs could not handle.

    ID is the id that `list` prints.
    """


@dead.command("list", cls=CeleryCommand)
@click.option("--name", metavar="NAME", help="Of jobs of this name only.")
@click.option("--key", metavar="KEY", help="Of jobs of this key only.")
@keyspace_option
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Maximum number to list.")
@click.option("--after", metavar="ID", help="List only those that died after this one.")
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    name: str | None,
    key: str | None,
    keyspace: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List dead notifications, oldest first, one page at a time."""
    found = list(islice(_all(ctx, keyspace, name=name, key=key, after=after), limit + 1))
    facts = {"notifications": [_facts(*one) for one in found[:limit]], "more": len(found) > limit}
    show(ctx.obj, facts, _draw_list, as_json=as_json)


@dead.command("show", cls=CeleryCommand)
@click.argument("dead_id", metavar="ID")
@keyspace_option
@json_option
@click.pass_context
def show_(ctx: click.Context, dead_id: str, keyspace: str | None, as_json: bool) -> None:
    """Show a dead notification with its payload."""
    dead_id, found = _named(ctx, dead_id, keyspace)
    show(ctx.obj, {**_facts(dead_id, found), "payload": found.payload}, _draw_one, as_json=as_json)


@dead.command(cls=CeleryCommand)
@click.argument("dead_id", metavar="[ID]", required=False)
@every_option
@keyspace_option
@json_option
@click.pass_context
def retry(ctx: click.Context, dead_id: str | None, every: bool, keyspace: str | None, as_json: bool) -> None:
    """Put a dead notification behind those that wait for its job, and reset its deliveries."""
    done, failed, notes = [], [], _dead(ctx)
    for shown, found in _chosen(ctx, dead_id, keyspace, every=every):
        try:
            if notes.retry(found.id, keyspace=found.keyspace):
                done.append(shown)
        except StickyError as error:
            failed.append({"id": shown, "error": str(error)})
    show(ctx.obj, {"retried": done, "failed": failed}, _draw_retried, as_json=as_json)
    ctx.exit(1 if failed else 0)


@dead.command(cls=CeleryCommand)
@click.argument("dead_id", metavar="[ID]", required=False)
@every_option
@keyspace_option
@json_option
@click.pass_context
def drop(ctx: click.Context, dead_id: str | None, every: bool, keyspace: str | None, as_json: bool) -> None:
    """Delete a dead notification for ever."""
    chosen, notes = _chosen(ctx, dead_id, keyspace, every=every), _dead(ctx)
    done = [shown for shown, found in chosen if notes.drop(found.id, keyspace=found.keyspace)]
    show(ctx.obj, {"dropped": done}, lambda _: [f"dropped: {', '.join(done) or 'nothing'}"], as_json=as_json)


def _dead(ctx: click.Context) -> DeadNotes:
    found = Sticky.of(ctx.obj.app).jobs
    ctx.call_on_close(found.close)
    return found.dead


def _keyspaces(ctx: click.Context, keyspace: str | None) -> list[str]:
    with Session(ctx.obj.app) as session:
        return list(session.only(keyspace))


def _all(
    ctx: click.Context,
    keyspace: str | None,
    *,
    name: str | None = None,
    key: str | None = None,
    after: str | None = None,
) -> Iterator[Found]:
    start, _, last = (after or "").rpartition("/")
    names = _keyspaces(ctx, keyspace)
    for space in names[names.index(start) :] if start in names else names:
        since = last if space == start or not start else ""
        for found in _dead(ctx).list(name, key, keyspace=space, after=since):
            yield f"{space}/{found.id}", found


def _chosen(ctx: click.Context, dead_id: str | None, keyspace: str | None, *, every: bool) -> list[Found]:
    if every == (dead_id is not None):
        raise click.UsageError("give an ID, or --all")
    return list(_all(ctx, keyspace)) if dead_id is None else [_named(ctx, dead_id, keyspace)]


def _named(ctx: click.Context, dead_id: str, keyspace: str | None) -> Found:
    """Return the notification with this id.

    Raises:
        StickyError: none matches, or several do.
    """
    start, _, bare = dead_id.rpartition("/")
    spaces = [space for space in _keyspaces(ctx, keyspace) if start in ("", space)]
    asked = [(f"{space}/{bare}", _dead(ctx).get(bare, keyspace=space)) for space in spaces]
    found = [(shown, one) for shown, one in asked if one is not None]
    if not found:
        raise StickyError(f"there is no dead notification {dead_id!r}: see `celery sticky jobs dead list`")
    if len(found) > 1:
        raise StickyError(f"{dead_id!r} matches several; use one of: {', '.join(shown for shown, _ in found)}")
    return found[0]


def _facts(shown: str, found: DeadNotification) -> dict[str, Any]:
    facts = {"id": shown, **{name: value for name, value in asdict(found).items() if name not in ("id", "payload")}}
    return {**facts, "job": facts.pop("name")}


def _draw_list(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not facts["notifications"]:
        yield "no dead notifications"
        return
    made = table("ID", "job", "key", "died", "deliveries", "bytes", "error", right=("deliveries", "bytes"))
    for one in facts["notifications"]:
        row = (one["id"], one["job"], one["key"], moment(one["died"]), one["deliveries"], one["size"], one["error"])
        made.add_row(*(Text(dash(value)) for value in row))
    yield made
    if facts["more"]:
        yield f"more follow: --after {facts['notifications'][-1]['id']}"


def _draw_one(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("", "")
    made.show_header = False
    for name, value in facts.items():
        shown = moment(value) if name == "died" else json.dumps(value) if name == "payload" else dash(value)
        made.add_row(name, Text(shown))
    yield made


def _draw_retried(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for shown in facts["retried"]:
        yield Text(f"{shown} waits for its job again")
    for one in facts["failed"]:
        yield Text(f"✗ {one['id']} stays dead: {one['error']}", style="bold red")
    if not facts["retried"] and not facts["failed"]:
        yield "no dead notifications"
