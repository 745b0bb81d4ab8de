"""`celery sticky init`: write the first ownership document, so that the first workers need not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import json_option, keyspace_option, show
from celery_sticky.errors import StickyError
from celery_sticky.keys import HASH_NAME
from celery_sticky.ownership import changes
from celery_sticky.stores import Store

WARNING = (
    "Every member loses its slots at once. A worker that cannot reach the store may continue until its lease ends, so "
    "a key may have two owners for that time. Stop all workers first."
)


@click.command(cls=CeleryCommand)
@keyspace_option
@click.option("--force", is_flag=True, help="Replace an existing document. Stop all workers first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def init(ctx: click.Context, keyspace: str | None, force: bool, yes: bool, as_json: bool) -> None:
    """Write the first ownership document of each keyspace.

    Without this command, workers write the document themselves after waiting for one lease, in case other workers are
    still alive. A first deployment does not need that wait. Do not run this command if the store has lost its data
    while workers are still alive.
    """
    if force and not yes:
        click.confirm(f"{WARNING} Continue?", abort=True, err=True)
    with Session(ctx.obj.app) as session:
        done = [
            {
                "keyspace": name,
                **write_first(
                    session.store(name),
                    session.settings.slots_of(name),
                    force=force,
                    hash_name=session.settings.hash_of(name),
                ),
            }
            for name in session.only(keyspace)
        ]
    show(ctx.obj, {"keyspaces": done}, _draw, as_json=as_json)


def write_first(store: Store, slots: int, *, force: bool = False, hash_name: str = HASH_NAME) -> dict[str, Any]:
    """Write a document without members, unless there is one already.

    Raises:
        StickyError: another process changed the document at the same time.
    """
    reading = store.read()
    old = reading.view
    if old is not None and not force:
        return {"written": False, "slots": old.slots, "version": old.version}
    fresh = changes.fresh(
        slots=slots,
        hash=hash_name,
        generation=changes.generation_after(old.generation if old else 0, reading.clock),
        version=old.version + 1 if old else 1,
        store_id=reading.store_id,
        epochs=old.max_epoch if old else 0,
    )
    if not store.swap(old, fresh):
        raise StickyError("another process changed the document at the same time: run the command again")
    return {"written": True, "slots": slots, "version": fresh.version}


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in facts["keyspaces"]:
        what = "written" if one["written"] else "exists already, nothing changed"
        yield f"keyspace {one['keyspace']}: document of {one['slots']} slots, version {one['version']}: {what}"
