"""List, show, retry and drop buried messages: the commands of `celery sticky dead` and `celery sticky abandoned`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.reroute import retry_message
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import dash, json_option, keyspace_option, moment, show, table
from celery_sticky.envelope import DamagedMessage, parse
from celery_sticky.errors import StickyError
from celery_sticky.queues import Dead

PAGE = 200
limit_option = click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Maximum number to list."
)
after_option = click.option("--after", metavar="ID", help="List only messages buried after this one.")
named_argument = click.argument("name", metavar="ID")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
RETRY = """A message in the wrong slot goes to the right one. No message is lost: if the command is interrupted, a
message may be both in its queue and still buried."""


@dataclass(frozen=True, slots=True)
class Found:
    """A buried message and its keyspace."""

    keyspace: str
    dead: Dead

    @property
    def name(self) -> str:
        """The id by which the commands name it."""
        return f"{self.keyspace}/{self.dead.id}"

    @property
    def info(self) -> dict[str, Any]:
        """The facts as they are stored."""
        found: dict[str, Any] = json.loads(self.dead.info)
        return found

    def facts(self) -> dict[str, Any]:
        """Return the facts recorded when it was buried. They do not include the body."""
        info = self.info
        wanted = ("task", "id", "key", "reason", "at", "worker")
        return {"name": self.name, "keyspace": self.keyspace, **{name: info.get(name) for name in wanted}}


@dataclass(frozen=True, slots=True)
class Kind:
    """Which buried messages a command group is for, and its words."""

    command: str
    about: str
    one: str
    noun: str
    retry: str
    includes: Callable[[Found], bool]


def group(kind: Kind) -> click.Group:
    """Return the command group for these messages: list, show, retry and drop."""
    made = click.Group(kind.command, help=f"{kind.about}\n\nID is the id that `list` prints, or the task id.")
    one = click.argument("name", metavar="[ID]", required=False)
    every = click.option("--all", "every", is_flag=True, help=f"All {kind.noun}s.")

    def add(name: str, about: str, command: Callable[..., None], *options: Decorator) -> None:
        function: Callable[..., Any] = partial(command, kind)
        decorators: list[Decorator] = [json_option, *reversed(options), click.pass_context]
        for decorate in decorators:
            function = decorate(function)
        made.command(name, cls=CeleryCommand, help=about)(function)

    about = f"List {kind.noun}s, oldest first, one page at a time."
    add("list", about, _list, keyspace_option, limit_option, after_option)
    add("show", f"Show {kind.one} with its headers and arguments.", _show, named_argument, keyspace_option)
    add("retry", f"{kind.retry}\n\n{RETRY}", _retry, one, every, keyspace_option)
    add("drop", f"Delete {kind.one} for ever.", _drop, one, every, keyspace_option)
    return made


def _list(kind: Kind, ctx: click.Context, keyspace: str | None, limit: int, after: str | None, as_json: bool) -> None:
    with Session(ctx.obj.app) as session:
        page = list(islice(_all(session, kind, keyspace, after), limit + 1))
    facts = {"messages": [found.facts() for found in page[:limit]], "more": len(page) > limit}
    show(ctx.obj, facts, partial(_draw_list, kind), as_json=as_json)


def _show(kind: Kind, ctx: click.Context, name: str, keyspace: str | None, as_json: bool) -> None:
    with Session(ctx.obj.app) as session:
        (found,) = _named(session, kind, name, keyspace)
        whole = session.queues.dead_message(found.keyspace, found.dead.id) or found.dead
    show(ctx.obj, {**found.facts(), **_contents(whole.body or b"")}, _draw_one, as_json=as_json)


def _retry(kind: Kind, ctx: click.Context, name: str | None, every: bool, keyspace: str | None, as_json: bool) -> None:
    done, failed = [], []
    with Session(ctx.obj.app) as session:
        for found in _chosen(session, kind, name, keyspace, every=every):
            try:
                done.append({"name": found.name, "queue": retry_message(session, found.keyspace, found.dead)})
            except (StickyError, ValueError) as error:
                failed.append({"name": found.name, "error": str(error)})
    show(ctx.obj, {"retried": done, "failed": failed}, partial(_draw_retried, kind), as_json=as_json)
    ctx.exit(1 if failed else 0)


def _drop(kind: Kind, ctx: click.Context, name: str | None, every: bool, keyspace: str | None, as_json: bool) -> None:
    with Session(ctx.obj.app) as session:
        chosen = _chosen(session, kind, name, keyspace, every=every)
        done = [found.name for found in chosen if session.queues.drop(found.keyspace, found.dead.id)]
    show(ctx.obj, {"dropped": done}, lambda _: [f"dropped: {', '.join(done) or 'nothing'}"], as_json=as_json)


def _all(session: Session, kind: Kind, keyspace: str | None, after: str | None = None) -> Iterator[Found]:
    """Yield messages one page at a time, so that the caller may drop or retry messages meanwhile."""
    names = session.only(keyspace)
    if after is not None:
        start, _, after = after.rpartition("/")
        names = names[names.index(start) :] if start in names else names
    for name in names:
        last = after or ""
        while page := session.queues.dead(name, after=last, limit=PAGE):
            yield from filter(kind.includes, (Found(name, dead) for dead in page))
            last = page[-1].id
            if len(page) < PAGE:
                break
        after = None


def _chosen(session: Session, kind: Kind, name: str | None, keyspace: str | None, *, every: bool) -> Iterable[Found]:
    if every == (name is not None):
        raise click.UsageError("give an ID, or --all")
    return list(_all(session, kind, keyspace)) if name is None else _named(session, kind, name, keyspace)


def _named(session: Session, kind: Kind, name: str, keyspace: str | None) -> list[Found]:
    """Return the message with this id, as a list of one.

    Raises:
        StickyError: no message matches, or several do.
    """
    found = [one for one in _all(session, kind, keyspace) if name in (one.name, one.dead.id, one.facts()["id"])]
    if not found:
        raise StickyError(f"there is no {kind.noun} {name!r}: see `celery sticky {kind.command} list`")
    if len(found) > 1:
        raise StickyError(f"{name!r} matches several messages; use one of: {', '.join(one.name for one in found)}")
    return found


def _contents(body: bytes) -> dict[str, Any]:
    try:
        envelope = parse(body)
    except DamagedMessage as error:
        return {"error": str(error), "raw": body.decode(errors="backslashreplace")}
    return {
        "headers": envelope.headers,
        "properties": envelope.properties,
        "content_type": envelope.content_type,
        "body": envelope.body.decode(errors="backslashreplace"),
    }


def _draw_list(kind: Kind, facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not facts["messages"]:
        yield f"no {kind.noun}s"
        return
    made = table("ID", "task", "key", "buried", "reason", "task id")
    for one in facts["messages"]:
        row = (
            one["name"],
            dash(one["task"]),
            dash(one["key"]),
            moment(one["at"]),
            dash(one["reason"]),
            dash(one["id"]),
        )
        made.add_row(*map(Text, row))
    yield made
    if facts["more"]:
        yield f"more messages follow: --after {facts['messages'][-1]['name']}"


def _draw_one(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("", "")
    made.show_header = False
    for name, value in facts.items():
        if name == "at":
            value = f"{moment(value)} ({time.time() - value:.0f} s ago)" if value else None
        made.add_row(name, Text(json.dumps(value, indent=2) if isinstance(value, dict) else dash(value)))
    yield made


def _draw_retried(kind: Kind, facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in facts["retried"]:
        yield Text(f"{one['name']} → {one['queue']}")
    for one in facts["failed"]:
        yield Text(f"✗ {one['name']} stays buried: {one['error']}", style="bold red")
    if not facts["retried"] and not facts["failed"]:
        yield f"no {kind.noun}s"
