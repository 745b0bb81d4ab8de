"""`celery sticky jobs`: list jobs; start, notify, change and stop one; shut down all jobs of a keyspace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType
from rich.text import Text

from celery_sticky.app import Sticky
from celery_sticky.cli.dead_notes import dead
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import dash, json_option, keyspace_option, moment, show, table
from celery_sticky.errors import InvalidPayload, NoSuchJob
from celery_sticky.jobs.client import Jobs
from celery_sticky.keys import DEFAULT_KEYSPACE

COLUMNS = {
    "job": "name",
    "key": "key",
    "keyspace": "keyspace",
    "slot": "slot",
    "state": "state",
    "worker": "worker",
    "starts": "attempt",
    "failures": "failures",
    "reason": "reason",
    "error": "error",
}
"""The columns of the list, and the field that each shows."""
NUMBERS = ("slot", "starts", "failures")
name_argument = click.argument("name")
key_argument = click.argument("key")
one_keyspace_option = click.option(
    "--keyspace", metavar="NAME", help="The job's keyspace, if not the one it was declared with."
)
wait_option = click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    default=0.0,
    show_default=True,
    help="How long to wait for the job to end.",
)
shut_keyspace_option = click.option("--keyspace", metavar="NAME", default=DEFAULT_KEYSPACE, show_default=True)


def payload_option(owner: str) -> Callable[[Any], Any]:
    """Return the option for the payload of a job or a notification."""
    text = f"The {owner}'s payload."
    return click.option("--payload", metavar="JSON", default="null", show_default=True, help=text)


def timeout_option(setting: str) -> Callable[[Any], Any]:
    """Return the option for a time that this setting determines otherwise."""
    return click.option("--timeout", type=float, metavar="SECONDS", help=f"How long to wait; default: {setting}.")


@click.group()
def jobs() -> None:
    """List jobs; dispatch, notify, change or stop one; shut down all of a keyspace; list dead notifications."""


@jobs.command("list", cls=CeleryCommand)
@click.option("--name", metavar="NAME", help="Jobs of this name only.")
@keyspace_option
@json_option
@click.pass_context
def list_(ctx: click.Context, name: str | None, keyspace: str | None, as_json: bool) -> None:
    """List all jobs with their state and the reason for it."""
    with Session(ctx.obj.app) as session:
        asked = _jobs(ctx)
        found = [asdict(info) for space in session.only(keyspace) for info in asked.list(name, keyspace=space)]
    show(ctx.obj, {"jobs": found}, _draw_list, as_json=as_json)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@one_keyspace_option
@json_option
@click.pass_context
def get(ctx: click.Context, name: str, key: str, keyspace: str | None, as_json: bool) -> None:
    """Show job NAME of KEY; exit with 1 if there is no such job."""
    info = _jobs(ctx).get(name, key, keyspace=keyspace)
    if info is None:
        raise NoSuchJob(f"there is no job {name!r} of key {key!r}: see `celery sticky jobs list`")
    show(ctx.obj, asdict(info), _draw_one, as_json=as_json)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@payload_option("job")
@click.option("--id", "job_id", metavar="ID", help="Repeat the dispatch with this id.")
@timeout_option("sticky_job_start_timeout")
@one_keyspace_option
@click.pass_context
def dispatch(
    ctx: click.Context,
    name: str,
    key: str,
    payload: str,
    job_id: str | None,
    timeout: float | None,
    keyspace: str | None,
) -> None:
    """Start job NAME for KEY, and wait until it has started."""
    made = _jobs(ctx).dispatch(name, key, _read(payload), keyspace=keyspace, timeout=timeout, id=job_id)
    click.echo(f"started, id {made}")


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@payload_option("notification")
@one_keyspace_option
@click.pass_context
def notify(ctx: click.Context, name: str, key: str, payload: str, keyspace: str | None) -> None:
    """Send a notification to job NAME of KEY."""
    _jobs(ctx).notify(name, key, _read(payload), keyspace=keyspace)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@wait_option
@one_keyspace_option
@click.pass_context
def stop(ctx: click.Context, name: str, key: str, timeout: float, keyspace: str | None) -> None:
    """Stop job NAME for KEY."""
    _jobs(ctx).stop(name, key, keyspace=keyspace, timeout=timeout)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@click.option("--payload", metavar="JSON", required=True, help="The job's new payload.")
@click.option("--no-restart", is_flag=True, help="Do not restart the job: it gets the payload at its next start.")
@one_keyspace_option
@click.pass_context
def update(ctx: click.Context, name: str, key: str, payload: str, no_restart: bool, keyspace: str | None) -> None:
    """Give job NAME of KEY another payload, and restart it."""
    _jobs(ctx).update(name, key, _read(payload), keyspace=keyspace, restart=not no_restart)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@one_keyspace_option
@click.pass_context
def restart(ctx: click.Context, name: str, key: str, keyspace: str | None) -> None:
    """Stop job NAME of KEY and start it again; a failing job is started at once."""
    _jobs(ctx).restart(name, key, keyspace=keyspace)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@wait_option
@one_keyspace_option
@click.pass_context
def pause(ctx: click.Context, name: str, key: str, timeout: float, keyspace: str | None) -> None:
    """Stop job NAME of KEY until it is resumed; it keeps payload, checkpoint and notifications."""
    _jobs(ctx).pause(name, key, keyspace=keyspace, timeout=timeout)


@jobs.command(cls=CeleryCommand)
@name_argument
@key_argument
@one_keyspace_option
@click.pass_context
def resume(ctx: click.Context, name: str, key: str, keyspace: str | None) -> None:
    """Start job NAME of KEY again after a pause."""
    _jobs(ctx).resume(name, key, keyspace=keyspace)


@jobs.command(cls=CeleryCommand)
@shut_keyspace_option
@timeout_option("sticky_job_shutdown_timeout")
@click.confirmation_option("--yes", prompt="Stop every job of this keyspace on every worker?", help="Do not ask.")
@click.pass_context
def shutdown(ctx: click.Context, keyspace: str, timeout: float | None) -> None:
    """Stop every job of a keyspace, refuse new ones, and wait until none is left."""
    _jobs(ctx).shutdown(keyspace, timeout=timeout)
    click.echo(f"the jobs of keyspace {keyspace} are shut down; undo it with `celery sticky jobs reopen`")


@jobs.command(cls=CeleryCommand)
@shut_keyspace_option
@click.pass_context
def reopen(ctx: click.Context, keyspace: str) -> None:
    """Accept jobs again after a shutdown."""
    _jobs(ctx).reopen(keyspace)


jobs.add_command(dead)


@jobs.command(cls=CeleryCommand)
@shut_keyspace_option
@click.confirmation_option("--yes", prompt="Remove the jobs that no worker finds?", help="Do not ask.")
@click.pass_context
def forget(ctx: click.Context, keyspace: str) -> None:
    """Remove the jobs left in a keyspace that was a placed one and is plain now."""
    click.echo(f"{_jobs(ctx).forget(keyspace)} jobs of keyspace {keyspace} are removed")


def _jobs(ctx: click.Context) -> Jobs:
    with Session(ctx.obj.app):  # loads the app's modules, which declare the keyspace of each job
        found: Jobs = Sticky.of(ctx.obj.app).jobs
    ctx.call_on_close(found.close)
    return found


def _read(payload: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError as error:
        raise InvalidPayload(f"--payload is not JSON: {error}; quote text inside the argument: '\"text\"'") from error


def _draw_list(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    if not facts["jobs"]:
        yield "no jobs"
        return
    made = table(*COLUMNS, right=NUMBERS)
    for one in facts["jobs"]:
        style = "bold red" if one["failures"] else "yellow" if one["reason"] else ""
        made.add_row(*(Text(dash(one[field])) for field in COLUMNS.values()), style=style)
    yield made


def _draw_one(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("", "")
    made.show_header = False
    for name, value in facts.items():
        shown = (
            moment(value) if name == "created" else json.dumps(value) if name in ("payload", "saved") else dash(value)
        )
        made.add_row(name, Text(shown))
    yield made
