"""The command `celery sticky verify`."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
from celery.bin.base import CeleryCommand
from rich.console import Console

from celery_sticky.cli.verify.checker import reach
from celery_sticky.cli.verify.faults import BY_NAME, FAULTS
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.picture import FORMATS, paint
from celery_sticky.cli.verify.placed import Placed
from celery_sticky.cli.verify.report import TITLES, draw, facts, versions
from celery_sticky.cli.verify.run import perform
from celery_sticky.cli.verify.server_options import broker_option, kind_of_server, server_option
from celery_sticky.cli.verify.site import Mode
from celery_sticky.errors import MissingDependency, StickyError
from celery_sticky.testing.servers import Kind

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
COULD_NOT_RUN = 2
LARGEST_SEED = 10**6


def read_faults(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[type[Fault], ...]:
    """Return the faults in a comma-separated list, without repetitions. `all` and `none` are accepted too."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if names in (["all"], ["none"]):
        return FAULTS if names == ["all"] else ()
    unknown = [name for name in names if name not in BY_NAME]
    if unknown or not names:
        raise click.BadParameter(
            f"unknown fault: {', '.join(unknown) or repr(value)}; the faults are {', '.join(BY_NAME)}, all, none"
        )
    return tuple(BY_NAME[name] for name in dict.fromkeys(names))


@click.command(cls=CeleryCommand)
@server_option
@broker_option
@click.option("--store", metavar="URL", help="Separate store; default: the broker, or a second embedded server.")
@click.option("--one-server", is_flag=True, help="Start one server, which is the broker and the store.")
@click.option("-P", "--pool", type=click.Choice(POOLS), default="prefork", show_default=True, help="Worker pool.")
@click.option(
    "-c",
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="Tasks that a worker runs at a time.",
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(2, 32), default=4, show_default=True, help="Workers at the start."
)
@click.option("--keys", metavar="K", type=click.IntRange(1), default=200, show_default=True, help="Number of keys.")
@click.option(
    "--rate",
    metavar="R",
    type=click.FloatRange(1, 10000),
    default=40.0,
    show_default=True,
    help="Tasks sent per second.",
)
@click.option(
    "--seconds",
    metavar="T",
    type=click.FloatRange(5, 86400),
    default=60.0,
    show_default=True,
    help="How long tasks are sent and faults are injected.",
)
@click.option(
    "--faults",
    metavar="LIST",
    callback=read_faults,
    default="all",
    show_default=True,
    help="Comma-separated faults; all: every fault possible in this run; none: no faults.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="Number of long-running jobs; 0: no jobs, and no bad jobs among them. None with --stock.",
)
@click.option(
    "--isolated",
    is_flag=True,
    help="Declare the bad jobs isolated: then they must not restart good jobs even once.",
)
@click.option(
    "--placed",
    type=click.Choice([how.value for how in Placed]),
    help="Use a placed keyspace. Workers pin some keys; other keys go to the worker that jump picks, to their slot, or "
    "are refused.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0), help="Seed of faults and load; default: random, printed.")
@click.option(
    "--slots", metavar="N", type=click.IntRange(1, 4096), default=64, show_default=True, help="Slots of the keyspace."
)
@click.option(
    "--lease-ttl",
    metavar="S",
    type=click.FloatRange(1.5, 60),
    default=3.0,
    show_default=True,
    help="Length of a lease in seconds; a slow machine needs more.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, writable=True),
    help="Write the findings to this file as JSON; - for standard output.",
)
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True),
    help="Draw slots by owner to this .svg or .png file; not with --stock or --placed.",
)
@click.option("--stock", is_flag=True, help="Test plain Celery: one queue, then one queue for each worker by hash.")
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    json_file: str | None,
    picture: str | None,
    stock: bool,
    lease_ttl: float,
    seed: int | None,
    placed: str | None,
    server: str | None,
    one_server: bool,
    **asked: Any,
) -> None:
    """Run real workers under load, inject faults, and check the recorded history. Needs no app.

    Exit status: 0 if every promise was kept, 1 if one was broken, 2 if it could not run.
    """
    # This variable would override the broker of this run (celery/app/utils.py, `Settings.broker_url`).
    os.environ.pop("CELERY_BROKER_URL", None)
    if picture is not None and Path(picture).suffix not in FORMATS:
        raise click.BadParameter(f"{picture} ends neither with .svg nor with .png", param_hint="--picture")
    kind = kind_of_server(server, asked["broker"])
    if one_server and (asked["broker"] or asked["store"]):
        raise click.BadParameter("it starts a server; leave out --broker and --store", param_hint="--one-server")
    if stock and kind is not Kind.VALKEY:
        raise click.BadParameter("plain Celery runs on Valkey here; leave out --server", param_hint="--stock")
    asked["store"] = "" if one_server else asked["store"]
    seed = random.randrange(LARGEST_SEED) if seed is None else seed
    how = Placed(placed) if placed is not None and not stock else None
    run_options = RunOptions(server=kind, ttl=lease_ttl, seed=seed, placed=how, **asked)
    console = Console(no_color=ctx.obj.no_color, highlight=False, stderr=json_file == "-", soft_wrap=True)
    modes = (Mode.QUEUE, Mode.HASH) if stock else (Mode.STICKY,)
    with _ends_in_order():
        try:
            outcomes = [_perform(replace(run_options, mode=mode), console) for mode in modes]
        except StickyError as error:
            _give_up(str(error))
        except KeyboardInterrupt:
            _give_up("interrupted")
    found = [facts(outcome, reach(outcome)) for outcome in outcomes]
    for one in found:
        for part in draw(one):
            console.print(part)
    if picture is not None and not stock and placed is None:
        _paint(outcomes[0], Path(picture), console)
    _write(json_file, {"stock": found, "seed": seed, "versions": versions()} if stock else found[0])
    ctx.exit(0 if all(one["ok"] for one in found) else 1)


def _perform(run_options: RunOptions, console: Console) -> VerifyRun:
    how = f"{run_options.workers} workers (-P {run_options.pool} -c {run_options.concurrency}), "
    how += f"{run_options.rate:g} tasks a second"
    if run_options.mode is Mode.STICKY:
        how += f", {run_options.jobs} jobs{' (bad ones isolated)' if run_options.isolated else ''}"
    how += f", on {run_options.server}" if run_options.server is not Kind.VALKEY else ""
    how += f", placed keyspace ({run_options.placed})" if run_options.placed is not None else ""
    console.print(f"{TITLES[run_options.mode]}: {how}, {run_options.seconds:g} s, seed {run_options.seed}")
    return perform(run_options, lambda at, text: console.print(f"{at:6.1f} s  {text}"))


def _paint(outcome: VerifyRun, path: Path, console: Console) -> None:
    try:
        paint(outcome, path)
    except (MissingDependency, OSError) as error:
        console.print(f"no picture was written: {error}", style="yellow")
    else:
        console.print(f"picture: {path}")


def _write(file: str | None, found: Any) -> None:
    text = json.dumps(found, indent=2, ensure_ascii=False)
    if file == "-":
        click.echo(text)
    elif file is not None:
        Path(file).write_text(text + "\n", encoding="utf-8")


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Make SIGTERM end the run as Ctrl+C does, so that nothing is left behind."""

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _give_up(why: str) -> NoReturn:
    click.echo(f"Error: {why}", err=True)
    sys.exit(COULD_NOT_RUN)
