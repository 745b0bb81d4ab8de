"""`celery sticky init`: write the first ownership document, so that the first workers need not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import json_option, keyspace_option, show
from celery_sticky.drivers import guarantees_of
from celery_sticky.stores.first_document import write_first

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
        guarantees = guarantees_of(session.broker)
        done = [
            {
                "keyspace": name,
                **write_first(
                    session.store(name),
                    session.settings.slots_of(name),
                    force=force,
                    hash_name=session.settings.hash_of(name),
                    epochs_outlive_store=guarantees is None or guarantees.epochs_outlive_store,
                ),
            }
            for name in session.only(keyspace)
        ]
    show(ctx.obj, {"keyspaces": done}, _draw, as_json=as_json)


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    for one in facts["keyspaces"]:
        what = "written" if one["written"] else "exists already, nothing changed"
        yield f"keyspace {one['keyspace']}: document of {one['slots']} slots, version {one['version']}: {what}"
