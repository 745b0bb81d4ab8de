"""`celery sticky sql`: the tables in a SQL database, for those whose workers may not create them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.app import Sticky
from celery_sticky.cli.session import IO_TIMEOUT
from celery_sticky.cli.tables import json_option, show
from celery_sticky.errors import InvalidSettings, StoreUnavailable
from celery_sticky.sql import Address, Database
from celery_sticky.sql.address import LEAD
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.sql.schema import NEWEST, statements
from celery_sticky.sql.tables import DEFAULT, Tables

MIGRATING = 60.0
"""Seconds that one statement of a migration may take."""

url_option = click.option("--url", help="The database; default: the app's broker and store, where they are databases.")
prefix_option = click.option(
    "--prefix", metavar="TEXT", help=f"How the names of tables begin; default: the app's table_prefix, or {DEFAULT}."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A database, and how the names of the tables there begin."""

    address: Address
    prefix: str

    def version(self) -> int:
        """Return the version of the tables."""
        with closing(self._database(IO_TIMEOUT)) as database:
            return database.schema_version()

    def migrate(self) -> None:
        """Bring the tables to the newest version."""
        with closing(self._database(MIGRATING)) as database:
            database.rows("SELECT name FROM {meta} WHERE name = %s", [b"version"])

    def facts(self, **more: int) -> dict[str, Any]:
        """Return facts about the tables."""
        return {"url": self.address.shown, "prefix": self.prefix, "version": self.version(), "newest": NEWEST, **more}

    def _database(self, timeout: float) -> Database:
        return Database(self.address, timeout=timeout, unavailable=StoreUnavailable, prefix=self.prefix)


@click.group()
def sql() -> None:
    """Show, create or migrate the tables in a SQL database."""


@sql.command("status", cls=CeleryCommand)
@url_option
@prefix_option
@json_option
@click.pass_context
def status(ctx: click.Context, url: str | None, prefix: str | None, as_json: bool) -> None:
    """Show the version of the tables. This changes nothing.

    Exit status: 0 if this release can use them, 1 if they have to be migrated.
    """
    found = [place.facts() for place in _places(ctx.obj.app, url, prefix)]
    show(ctx.obj, {"databases": found}, _draw, as_json=as_json)
    ctx.exit(0 if all(one["version"] == NEWEST for one in found) else 1)


@sql.command("migrate", cls=CeleryCommand)
@url_option
@prefix_option
@json_option
@click.pass_context
def migrate(ctx: click.Context, url: str | None, prefix: str | None, as_json: bool) -> None:
    """Create the tables, or bring those of an older release up to date.

    Workers of the older release go on: a migration adds, and removes nothing that they use.
    """
    done = []
    for place in _places(ctx.obj.app, url, prefix):
        before = place.version()
        place.migrate()
        done.append(place.facts(before=before))
    show(ctx.obj, {"databases": done}, _draw, as_json=as_json)


@sql.command("ddl", cls=CeleryCommand)
@url_option
@prefix_option
@click.option(
    "--since",
    metavar="VERSION",
    default=0,
    show_default=True,
    type=click.IntRange(0, NEWEST),
    help="The version that there is.",
)
@click.pass_context
def ddl(ctx: click.Context, url: str | None, prefix: str | None, since: int) -> None:
    """Print the statements that lead from a version of the tables to the newest one. This connects to nothing."""
    for place in _places(ctx.obj.app, url, prefix):
        click.echo(f"-- {place.address.shown}, tables {place.prefix}*: version {since} to {NEWEST}")
        for statement in statements(dialect_of(place.address), Tables(place.prefix), since):
            click.echo(f"{statement};")


def _places(app: Any, url: str | None, prefix: str | None) -> list[Place]:
    """Return the given database, or those that the app uses.

    Raises:
        InvalidSettings: it uses none.
    """
    prefix = prefix or (app.conf.broker_transport_options or {}).get("table_prefix", DEFAULT)
    used = [app.conf.broker_read_url, Sticky.of(app).settings.store] if url is None else [url]
    urls = dict.fromkeys(one for one in used if isinstance(one, str) and (url or one.startswith(LEAD)))
    if not urls:
        raise InvalidSettings(
            f"neither broker_url nor sticky_store is a database: name one with --url {LEAD}postgresql://…"
        )
    return [Place(Address.parse(one), prefix) for one in urls]


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in facts["databases"]:
        before = one.get("before", one["version"])
        what = f"version {one['version']}" + (f", migrated from {before}" if before != one["version"] else "")
        needs = "" if one["version"] == NEWEST else f"; this release needs {NEWEST}: run `sticky sql migrate`"
        yield f"{one['url']}, tables {one['prefix']}*: {what}{needs}"
