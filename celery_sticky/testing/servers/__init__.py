"""Servers for tests, the demo and `verify`: `base` has their protocol, and each other module one kind of server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import InvalidSettings
from celery_sticky.testing.servers.base import Server

if TYPE_CHECKING:
    from celery_sticky.testing.servers.postgresql import PostgresServer
    from celery_sticky.testing.servers.sqlite import SqliteFile
    from celery_sticky.testing.servers.valkey import ValkeyServer

    OwnClass = type[ValkeyServer] | type[PostgresServer] | type[SqliteFile]


class Kind(StrEnum):
    """The kinds of servers that can be started here."""

    VALKEY = "valkey"
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


def own_class(kind: Kind) -> OwnClass:
    """Return the class of the servers of this kind; what it needs is imported now, its program is not looked for."""
    match kind:
        case Kind.VALKEY:
            from celery_sticky.testing.servers.valkey import ValkeyServer

            return ValkeyServer
        case Kind.POSTGRESQL:
            from celery_sticky.testing.servers.postgresql import PostgresServer

            return PostgresServer
        case Kind.SQLITE:
            from celery_sticky.testing.servers.sqlite import SqliteFile

            return SqliteFile


def given(url: str, role: str = "server") -> Server:
    """Return the server at a Kombu URL, which was not started here; nothing is sent. `role` names it in messages.

    Raises:
        InvalidSettings: there is no support for this kind of server.
        MissingDependency: its client library is not installed.
    """
    from celery_sticky.testing.servers.redis import GivenRedis
    from celery_sticky.testing.servers.sql import GivenDatabase

    kinds = (GivenRedis, GivenDatabase)
    found = next((kind(url, role) for kind in kinds if kind.fits(url)), None)
    if found is None:
        supported = ", ".join(kind.supported for kind in kinds)
        raise InvalidSettings(f"{maybe_sanitize_url(url)} cannot be the {role} here; supported are {supported}")
    return found
