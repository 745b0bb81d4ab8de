"""Servers for tests, the demo and `verify`: `base` has their protocol, and each other module one kind of server."""

from __future__ import annotations

from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import InvalidSettings
from celery_sticky.testing.servers.base import Server


def given(url: str, role: str = "server") -> Server:
    """Return the server at a Kombu URL, which was not started here; nothing is sent. `role` names it in messages.

    Raises:
        InvalidSettings: there is no support for this kind of server.
        MissingDependency: its client library is not installed.
    """
    from celery_sticky.testing.servers.redis import GivenRedis

    kinds = (GivenRedis,)
    found = next((kind(url, role) for kind in kinds if kind.fits(url)), None)
    if found is None:
        supported = ", ".join(kind.supported for kind in kinds)
        raise InvalidSettings(f"{maybe_sanitize_url(url)} cannot be the {role} here; supported are {supported}")
    return found
