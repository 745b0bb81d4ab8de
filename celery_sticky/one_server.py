"""Refuses connections to several servers, before anything is sent.

A slot's messages and its owner must be in one place, so a list of servers to switch between is refused.

When Kombu loses its connection, it continues with the next URL of a list (`redis://a;redis://b`,
`broker_failover_strategy`), and each process does that independently. Half of the workers could then own every slot at
`a` and the other half at `b`, and messages would wait where nobody fetches them. A list of Sentinels is allowed,
because all of them lead to one primary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import InvalidSettings

if TYPE_CHECKING:
    from kombu import Connection


def check_one_server(connection: Connection, lists: Collection[str]) -> None:
    """Refuse a connection that names several servers. This sends nothing.

    `lists` are the URL schemes of which a list leads to one server, such as `sentinel`.

    Raises:
        InvalidSettings: the connection names more than one server.
    """
    urls = list(dict.fromkeys(connection.alt or ()))
    if len(urls) < 2 or all(url.partition("://")[0] in lists for url in urls):
        return
    named = ", ".join(maybe_sanitize_url(url) for url in urls)
    raise InvalidSettings(
        f"{len(urls)} servers are listed ({named}). Each Celery process would switch between them independently, but a "
        "slot's messages and owner are on one server. Use one server, a host name that always resolves to the primary, "
        "or Sentinels (sentinel://…;sentinel://…)"
    )
