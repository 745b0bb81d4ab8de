"""The command group `celery sticky`. Celery imports this module for each of its own commands too: keep that cheap."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options

from celery_sticky.bootsteps import control as control

COMMANDS: Final = {
    "dead": "celery_sticky.cli.dead",
    "demo": "celery_sticky.cli.demo.command",
    "doctor": "celery_sticky.cli.doctor",
    "init": "celery_sticky.cli.init",
    "jobs": "celery_sticky.cli.jobs",
    "owner": "celery_sticky.cli.owner",
    "plan": "celery_sticky.cli.plan",
    "status": "celery_sticky.cli.status",
    "verify": "celery_sticky.cli.verify.command",
}
"""Command -> the module that has it, under the command's name."""


class Group(click.Group):
    """Loads a command when it is asked for, and shows the errors of this package in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is no such one."""
        module = COMMANDS.get(cmd_name)
        command: click.Command | None = getattr(import_module(module), cmd_name) if module else None
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            ClickException: it failed in a way this package or the broker can put into words.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            from celery_sticky.cli.failures import FAILURES, said  # not above: it imports the client of Redis

            if not isinstance(error, FAILURES):
                raise
            raise click.ClickException(said(error)) from error


@click.group(cls=Group)
@click.pass_context
@handle_preload_options
def sticky(ctx: click.Context, **_: Any) -> None:
    """Who owns which keys, and whether all is well."""
