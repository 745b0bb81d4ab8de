"""The command `celery sticky demo`."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import click
from celery.bin.base import CeleryCommand
from rich.console import Console

from celery_sticky.cli.demo.checker import draw, reach
from celery_sticky.cli.demo.screen import screen
from celery_sticky.cli.demo.stage import PRESET, Stage, read_orders
from celery_sticky.cli.demo.story import NAMES, Story
from celery_sticky.cli.tables import json_option
from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.server_options import broker_option, kind_of_server, server_option
from celery_sticky.testing.servers import Kind

INTRODUCTION = """\
40 shops send orders. The orders of one shop must be charged one at a time and
in order, whatever happens to the workers. Each shop belongs to one of 120
slots, and each slot to one worker. The demo kills a worker and starts another.
"""
WHERE = {
    Kind.VALKEY: "on an embedded Valkey server",
    Kind.POSTGRESQL: "on an embedded PostgreSQL server",
    Kind.SQLITE: "on one SQLite file",
}


@click.command(cls=CeleryCommand)
@server_option
@broker_option
@click.option(
    "--seconds", default=16.0, type=click.FloatRange(8, 600), show_default=True, help="How long orders are sent."
)
@click.option("--tasks", default=600, type=click.IntRange(1), show_default=True, help="Number of orders.")
@click.option(
    "--workers",
    default=3,
    type=click.IntRange(2, len(NAMES) - 1),
    show_default=True,
    help="Workers at the start.",
)
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    server: str | None,
    broker: str | None,
    seconds: float,
    tasks: int,
    workers: int,
    as_json: bool,
) -> None:
    """Run real workers, kill one, add another, and check the recorded history. Needs no app."""
    # This variable would override the demo's own broker (celery/app/utils.py, `Settings.broker_url`).
    os.environ.pop("CELERY_BROKER_URL", None)
    kind = kind_of_server(server, broker)
    console = Console(no_color=ctx.obj.no_color, highlight=False, stderr=as_json)
    where = "on your server" if broker else WHERE[kind]
    console.print(INTRODUCTION + f"It takes about half a minute, {where}.\n", soft_wrap=True)
    with Cluster(replace(PRESET, server=kind, broker=broker, workers=workers)) as cluster:
        stage = Stage(cluster, read_orders(), tasks)
        try:
            stage.observer.initialise()
            with screen(console) as drawn:
                course = Story(stage, workers, seconds, drawn).play()
            found = reach(stage.observer.events(), course, stage.slot_of)
        finally:
            stage.close()
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        for part in draw(found):
            console.print(part)
    ctx.exit(0 if found["ok"] else 1)
