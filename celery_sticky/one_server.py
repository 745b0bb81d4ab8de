"""Which connections are refused before anything is sent: those to several servers, and those Kombu cannot make.

A slot's messages and its owner are in one place: a list of servers to switch between is refused.

Kombu goes on with the next URL of a list (`redis://a;redis://b`, `broker_failover_strategy`) when it loses its
connection, and each process does that by itself. Half of the workers would then own every slot at `a`, the other half
at `b`, and messages would stand where nobody looks. A list of Sentinels is no such list: they all name one primary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import InvalidSettings
from celery_sticky.redis_errors import NO_CLUSTER

if TYPE_CHECKING:
    from kombu import Connection

SENTINEL = "sentinel://"


def check_one_server(connection: Connection) -> None:
    """Refuse a connection that names several servers. It sends nothing.

    Raises:
        InvalidSettings: it names more than one, and not all of them are Sentinels.
    """
    urls = list(dict.fromkeys(connection.alt or ()))
    if len(urls) < 2 or all(url.startswith(SENTINEL) for url in urls):
        return
    named = ", ".join(maybe_sanitize_url(url) for url in urls)
    raise InvalidSettings(
        f"{len(urls)} servers are listed ({named}): Celery would switch between them, each process by itself, while a "
        "slot's messages and owner are at one of them. Name one server, a name that follows its primary, or Sentinels "
        "(sentinel://…;sentinel://…)"
    )


def known_connection(connect: Callable[[], Connection]) -> Connection:
    """Return a connection that Kombu can make. It sends nothing.

    Raises:
        InvalidSettings: Kombu has no transport of this name, or not the library that it needs.
    """
    try:
        connection = connect()
        connection.get_transport_cls()
    except KeyError as error:
        hint = f": {NO_CLUSTER}" if "cluster" in str(error) else ""
        raise InvalidSettings(f"{error.args[0]}{hint}") from error
    except ImportError as error:
        raise InvalidSettings(f"the server's client library is not installed: {error}") from error
    return connection
