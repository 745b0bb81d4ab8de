"""The command group `celery sticky`. Celery imports this module for its own commands too, so it must load fast."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options

from celery_sticky.bootsteps import control as control

COMMANDS: Final = {
    "abandoned": "celery_sticky.cli.abandoned",
    "dead": "celery_sticky.cli.dead",
    "demo": "celery_sticky.cli.demo.command",
    "doctor": "celery_sticky.cli.doctor",
    "drain": "celery_sticky.cli.drain",
    "init": "celery_sticky.cli.init",
    "jobs": "celery_sticky.cli.jobs",
    "owner": "celery_sticky.cli.owner",
    "pins": "celery_sticky.cli.pins",
    "plan": "celery_sticky.cli.plan",
    "sql": "celery_sticky.cli.sql",
    "status": "celery_sticky.cli.status",
    "verify": "celery_sticky.cli.verify.command",
}
"""Command -> the module that defines it under the command's name."""


class Group(click.Group):
    """Loads each command on demand, and shows this package's errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if it does not exist."""
        module = COMMANDS.get(cmd_name)
        command: click.Command | None = getattr(import_module(module), cmd_name) if module else None
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            ClickException: it failed with an error of this package, the broker or the network.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            from celery_sticky.cli.failures import failures, said  # not at the top: this imports the drivers

            if not isinstance(error, failures()):
                raise
            raise click.ClickException(said(error)) from error


@click.group(cls=Group)
@click.pass_context
@handle_preload_options
def sticky(ctx: click.Context, **_: Any) -> None:
    """Show who owns which keys, and check that the system is healthy."""
