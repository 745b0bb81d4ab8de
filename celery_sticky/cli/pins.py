"""`celery sticky pins`: list the pins of placed keyspaces, and release one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import json_option, keyspace_option, seconds, show, table
from celery_sticky.errors import InvalidSettings, NotPinned
from celery_sticky.keys import check_keyspace
from celery_sticky.stores.placement import START, PinRecord


@click.group()
def pins() -> None:
    """List pins; release one."""


@pins.command("list", cls=CeleryCommand)
@keyspace_option
@click.option("--worker", metavar="NAME", help="Pins of this worker only.")
@json_option
@click.pass_context
def list_(ctx: click.Context, keyspace: str | None, worker: str | None, as_json: bool) -> None:
    """List which worker has pinned which key, and since when."""
    with Session(ctx.obj.app) as session:
        found = [
            {"keyspace": name, **asdict(pin)}
            for name in _pinning(session, keyspace)
            for pin in sorted(_all(session, name), key=lambda pin: pin.key)
            if worker in (None, pin.worker)
        ]
    show(ctx.obj, {"pins": found}, _draw, as_json=as_json)


@pins.command(cls=CeleryCommand)
@click.argument("key")
@click.option("--keyspace", metavar="NAME", required=True, help="The keyspace of the key.")
@click.option("--token", type=int, metavar="TOKEN", help="Only if this is still the token of the pin.")
@click.pass_context
def release(ctx: click.Context, key: str, keyspace: str, token: int | None) -> None:
    """End the pin of KEY; its worker is told that it has lost it."""
    with Session(ctx.obj.app) as session:
        (name,) = _pinning(session, keyspace)
        worker = session.placement_store(name).revoke(key, token)
    if not worker:
        under = "" if token is None else f" under token {token}"
        raise NotPinned(f"key {key!r} of keyspace {name!r} is pinned by no live worker{under}")
    click.echo(f"released: key {key} of keyspace {name} was pinned by {worker}")


def _pinning(session: Session, keyspace: str | None) -> list[str]:
    """Return the keyspaces with pins, or this one.

    Raises:
        InvalidSettings: this one does not allow pins.
    """
    names = session.only(None if keyspace is None else check_keyspace(keyspace))
    found = [name for name in names if (placed := session.settings.placed_keyspace(name)) is not None and placed.pins]
    if keyspace is not None and not found:
        raise InvalidSettings(
            f"keyspace {keyspace!r} does not allow pins in this app: `Keyspace({keyspace!r}, pins=True)` would"
        )
    return found


def _all(session: Session, keyspace: str) -> Iterator[PinRecord]:
    store, at = session.placement_store(keyspace), START
    seen = set[str]()  # a hash that is resized meanwhile may show a pin twice
    while True:
        at, page = store.pins(at)
        yield from (pin for pin in page if pin.key not in seen)
        seen.update(pin.key for pin in page)
        if at == START:
            return


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not facts["pins"]:
        yield "no pins"
        return
    made = table("key", "keyspace", "worker", "age", "token", right=("age", "token"))
    for pin in facts["pins"]:
        made.add_row(Text(pin["key"]), pin["keyspace"], Text(pin["worker"]), seconds(pin["age"]), str(pin["token"]))
    yield made
