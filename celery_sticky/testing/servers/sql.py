"""A SQL database that was not created here, and what can be asked of any of them by its URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address
from celery_sticky.sql.address import KINDS, LEAD
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.sql.failures import describe
from celery_sticky.sql.link import Link
from celery_sticky.sql.schema import table_names
from celery_sticky.sql.tables import DEFAULT, Tables
from celery_sticky.testing.servers.base import Ability, lacks_of_given

TIMEOUT = 5.0
"""Seconds the database may take to answer."""
TABLES = Tables(DEFAULT)
"""The tables of an app that does not choose a prefix."""
BODIES = "SELECT body FROM {message} UNION ALL SELECT body FROM {deferred} UNION ALL SELECT body FROM {dead}"


class DatabaseRecords:
    """The verbs of every database: they need its URL only. A prefix is that of the names of tables."""

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        raise NotImplementedError

    def options(self, prefix: str = "") -> Mapping[str, Any]:
        """Return the transport options that go with `url`; with them, every table's name starts with `prefix`."""
        return {"table_prefix": prefix or DEFAULT}

    def clear(self, prefix: str = "") -> None:
        """Drop all tables of this package whose names start with `prefix`."""
        tables = Tables(prefix or DEFAULT)
        with self.link() as link:
            for table in table_names():
                link.run(f"DROP TABLE IF EXISTS {tables.name(table)}")

    def find(self, texts: Iterable[str], prefix: str = "") -> set[str]:
        """Return those of `texts` that stand in some message, in tables whose names start with `prefix`."""
        with self.link() as link:
            stored = b"\n".join(bytes(body) for (body,) in link.rows(Tables(prefix or DEFAULT).fill(BODIES)))
        return {text for text in texts if text.encode() in stored}

    @contextmanager
    def link(self, timeout: float = TIMEOUT) -> Iterator[Link]:
        """Lend a connection in autocommit, whose statements take at most `timeout` seconds each.

        Raises:
            BrokerUnavailable: the database does not answer, or refuses a statement of the block.
        """
        address = Address.parse(self.url)
        dialect = dialect_of(address)
        try:
            link = dialect.connect(address, timeout)
            try:
                yield link
            finally:
                link.close()
        except dialect.errors as error:
            raise BrokerUnavailable(f"{address.shown}: {describe(error, dialect.code(error))}") from error


class GivenDatabase(DatabaseRecords):
    """A database that others may use too, so that no fault may hit it."""

    supported: ClassVar[str] = "SQL databases (" + ", ".join(f"{LEAD}{kind}://" for kind in KINDS) + ")"

    def __init__(self, url: str, role: str = "server") -> None:
        self._url, self._role = url, role

    @classmethod
    def fits(cls, url: str) -> bool:
        """Return whether this is the URL of a database as a broker or store."""
        return url.startswith(tuple(f"{LEAD}{kind}:" for kind in KINDS))

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        return self._url

    @property
    def lacks(self) -> Mapping[Ability, str]:
        """See `lacks_of_given`."""
        return lacks_of_given(self._url, self._role)

    def teardown(self) -> None:
        """Leave the database as it is."""
