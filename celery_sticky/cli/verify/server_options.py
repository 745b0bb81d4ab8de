"""The options that choose the server of `verify` and of the demo."""

from __future__ import annotations

import click

from celery_sticky.testing.servers import Kind

server_option = click.option(
    "--server",
    type=click.Choice([kind.value for kind in Kind]),
    help="Kind of the server to start; default: valkey. A SQLite file needs nothing installed.",
)
broker_option = click.option(
    "--broker",
    metavar="URL",
    help="Your own Redis or SQL database instead of a server that is started. Keys or tables get their own prefix.",
)


def kind_of_server(server: str | None, broker: str | None) -> Kind:
    """Return the kind of the servers to start.

    Raises:
        click.BadParameter: a broker is given too.
    """
    if server is not None and broker is not None:
        raise click.BadParameter("it starts a server; leave out --broker", param_hint="--server")
    return Kind(server) if server is not None else Kind.VALKEY
