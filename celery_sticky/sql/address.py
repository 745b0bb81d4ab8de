"""The address of a database: `sticky+postgresql://`, `sticky+mysql://` and `sticky+sqlite:///` URLs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import InvalidSettings

LEAD = "sticky+"
KINDS = ("postgresql", "mysql", "sqlite")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is and who logs in there. What the URL leaves out is None or empty."""

    kind: str
    """One of `KINDS`."""
    database: str
    """The database's name. SQLite: the path of its file."""
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    """The query of the URL: options of the client library."""
    shown: str = ""
    """The URL without its password, for messages."""

    @classmethod
    def of(cls, connection: Any) -> Self:
        """Read the URL of a Kombu connection, and the password that may be beside it.

        Raises:
            InvalidSettings: it is not the URL of a database.
        """
        url = LEAD + str(connection.hostname or "").removeprefix(LEAD)
        return cls.parse(with_password(url, connection.password) if connection.password else url)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL, with or without the leading `sticky+`.

        A path of SQLite is absolute after four slashes (`sticky+sqlite:////var/lib/app.db`), else relative.

        Raises:
            InvalidSettings: it is not the URL of a database.
        """
        try:
            bare, password = without_password(url.removeprefix(LEAD))
            parts = urlsplit(bare)
            port, shown = parts.port, str(maybe_sanitize_url(url))
        except ValueError as error:
            raise InvalidSettings(f"the URL of the database cannot be read: {error}") from error
        database = unquote(parts.path.removeprefix("/"))
        if parts.scheme not in KINDS:
            raise InvalidSettings(f"{shown} is not a database: its scheme must be one of {', '.join(KINDS)}")
        if not database:
            raise InvalidSettings(f"{shown} does not name a {'file' if parts.scheme == 'sqlite' else 'database'}")
        if parts.scheme == "sqlite" and parts.netloc:
            raise InvalidSettings(f"{shown}: the path of a SQLite file follows three slashes, four if it is absolute")
        return cls(
            parts.scheme,
            database,
            parts.hostname,
            port,
            unquote(parts.username) if parts.username else None,
            password,
            dict(parse_qsl(parts.query)),
            shown,
        )


def without_password(url: str) -> tuple[str, str | None]:
    """Return a URL without its password, and the password. It may also be an option: psycopg takes it there."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        password = dict(options).get("password", None if parts.password is None else unquote(parts.password))
    except ValueError:  # not a URL, as connecting will say
        return url, None
    if password is None:
        return url, None
    user, at, place = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in options if name != "password"])
    return parts._replace(netloc=user.partition(":")[0] + at + place, query=query).geturl(), password


def with_password(url: str, password: str) -> str:
    """Return a URL with a password, unless it has one."""
    bare, own = without_password(url)
    if own is not None:
        return url
    parts = urlsplit(bare)
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()
