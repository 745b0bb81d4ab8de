"""One thread's connection to a database: made when it is needed, dropped after any error, never used after a fork."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from celery_sticky.errors import InvalidSettings, StickyError
from celery_sticky.sql.address import Address
from celery_sticky.sql.bell import Ring, Topic, payloads
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.sql.failures import describe, is_refusal
from celery_sticky.sql.link import Link, Parameters, Row
from celery_sticky.sql.schema import ensure_schema, version_of
from celery_sticky.sql.tables import DEFAULT, Tables

_inherited: list[Link] = []
"""Connections of a parent process. They stay referenced, so that no destructor says goodbye to the server for them."""


class Runner(Protocol):
    """Runs statements that name tables as `{message}`: a database, one transaction for each, or a transaction."""

    def rows(self, statement: str, said: Parameters = ()) -> list[Row]:
        """Run a statement and return its rows."""

    def run(self, statement: str, said: Parameters = (), *, ring: Collection[Topic] = ()) -> int:
        """Run a statement and return how many rows it has changed. After its commit, `ring` these topics."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Who is told of changes, and where to hear of them."""

    listen: Address | None = None
    """Where to hear; None: at the database's own address."""
    rings: bool = True
    """False: this process neither rings nor hears."""


ALL = Notify()
"""Ring, and hear at the database itself."""


class Writer(Protocol):
    """Runs statements that change tables."""

    @property
    def clock(self) -> str:
        """An expression: the database's clock, in seconds since the Unix epoch."""

    def run(self, statement: str, said: Parameters = (), *, ring: Collection[Topic] = ()) -> int:
        """See `Runner.run`."""


class Transaction:
    """A transaction that is open."""

    def __init__(self, link: Link, tables: Tables) -> None:
        self._link, self._tables = link, tables
        self.topics: dict[Topic, None] = {}
        """What to ring after the commit."""

    def rows(self, statement: str, said: Parameters = ()) -> list[Row]:
        """See `Runner.rows`."""
        return self._link.rows(self._tables.fill(statement), said)

    def run(self, statement: str, said: Parameters = (), *, ring: Collection[Topic] = ()) -> int:
        """See `Runner.run`."""
        self.topics.update(dict.fromkeys(ring))
        return self._link.run(self._tables.fill(statement), said)


class Database:
    """A database, reached by one connection. One thread at a time uses it. It connects at the first statement.

    Every method that runs a statement raises `unavailable` (`BrokerUnavailable` or `StoreUnavailable`) if the database
    refuses it or does not answer in `timeout` seconds: the statement, or the commit, may or may not have taken effect;
    `SchemaTooNew` or `SchemaTooOld` if its tables are those of another release.

    Raises:
        MissingDependency: the client library is not installed.
        InvalidSettings: the prefix cannot begin the name of a table.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout: float,
        unavailable: type[StickyError],
        prefix: str = DEFAULT,
        migrate: bool = True,
        notify: Notify = ALL,
    ) -> None:
        """`prefix`: how the names of tables begin. `migrate`: whether to create them, and to update older ones."""
        self.dialect = dialect_of(address)
        self.tables = Tables(prefix)
        self.address, self.timeout, self.notify = address, timeout, notify
        self.ringer = secrets.token_hex(4)
        """Its name in the rings that it rings."""
        self._unavailable = unavailable
        self._migrate = migrate
        self._link: Link | None = None
        self._fits = False
        """Whether the tables are known to be those of this release."""
        self._pid = 0
        self._plain = True

    @classmethod
    def of(cls, connection: Any, *, timeout: float, unavailable: type[StickyError]) -> Self:
        """Return the database of a Kombu connection, with those of its transport options that concern databases.

        Raises:
            InvalidSettings: the connection's URL is not that of a database, or an option cannot be used.
        """
        options = connection.transport_options or {}
        return cls(
            Address.of(connection),
            timeout=timeout,
            unavailable=unavailable,
            prefix=str(options.get("table_prefix", DEFAULT)),
            migrate=bool(options.get("migrate", True)),
            notify=_notify(options),
        )

    def another(self) -> Self:
        """Return another connection to the same database."""
        return type(self)(
            self.address,
            timeout=self.timeout,
            unavailable=self._unavailable,
            prefix=self.tables.prefix,
            migrate=self._migrate,
            notify=self.notify,
        )

    def rows(self, statement: str, said: Parameters = ()) -> list[Row]:
        """Run one statement by itself, which is a transaction then, and return its rows."""
        with self._safely() as link:
            if self._plain:
                return link.rows(self.tables.fill(statement), said)
        with self.transaction() as inside:
            return inside.rows(statement, said)

    def run(self, statement: str, said: Parameters = (), *, ring: Collection[Topic] = ()) -> int:
        """Run one statement by itself, and return how many rows it has changed. After its commit, `ring` topics."""
        with self._safely() as link:
            if self._plain:
                return self._commit(link, self.tables.fill(statement), said, ring)
        with self.transaction() as inside:
            return inside.run(statement, said, ring=ring)

    def ring(self, topics: Collection[Topic]) -> None:
        """Ring for what was committed over another connection."""
        with self._safely(fits=False) as link:
            self._commit(link, "SELECT 1", (), topics)

    @property
    def clock(self) -> str:
        """See `Dialect.clock`."""
        return self.dialect.clock

    def version(self) -> int | None:
        """See `Dialect.version`."""
        with self._safely() as link:
            return self.dialect.version(link)

    def schema_version(self) -> int:
        """Return the version of the tables, whether or not this release can use it; 0: there are none."""
        with self._safely(fits=False) as link:
            return version_of(link, self.dialect, self.tables)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit what the block does; roll it back if the block raises."""
        with self._safely() as link:
            link.run(self.dialect.begin)
            inside = Transaction(link, self.tables)
            try:
                yield inside
            except self.dialect.errors:
                raise  # the connection is dropped, and the transaction with it
            except Exception:
                link.run("ROLLBACK")
                raise
            self._commit(link, "COMMIT", (), inside.topics)

    def _commit(self, link: Link, statement: str, said: Parameters, topics: Collection[Topic]) -> int:
        """Run a statement that commits, and then ring, which never fails."""
        if not topics or not self.notify.rings:
            return link.run(statement, said)
        rings = [(self.tables.prefix, payload) for payload in payloads(Ring(self.ringer, topics))]
        return link.run_and_ring(statement, said, rings)

    def has_refused(self, error: Exception) -> bool:
        """Return whether an error that was raised here is about the data of a statement; nothing took effect then."""
        cause = error.__cause__
        return isinstance(cause, self.dialect.errors) and is_refusal(self.dialect.code(cause))

    def close(self) -> None:
        """Close the connection; the next statement makes another. May be called twice."""
        link, self._link, self._fits = self._link, None, False
        if link is None:
            return
        if self._pid != os.getpid():
            _inherited.append(link)
            return
        with suppress(*self.dialect.errors):
            link.close()

    @contextmanager
    def _safely(self, *, fits: bool = True) -> Iterator[Link]:
        """`fits`: the tables must be those of this release."""
        try:
            yield self._connected(fits=fits)
        except self.dialect.errors as error:
            self.close()
            why = describe(error, self.dialect.code(error))
            raise self._unavailable(f"{self.address.shown}: {why}") from error
        except StickyError:
            raise
        except BaseException:  # interrupted in the middle of an answer, perhaps
            self.close()
            raise

    def _connected(self, *, fits: bool) -> Link:
        if self._link is not None and (self._pid != os.getpid() or self._link.closed):
            self.close()
        if self._link is None:
            self._link, self._pid = self.dialect.connect(self.address, self.timeout), os.getpid()
            self._plain = self.dialect.plain(self._link)
        if fits and not self._fits:
            self._check(self._link)
        return self._link

    def _check(self, link: Link) -> None:
        try:
            ensure_schema(link, self.dialect, self.tables, self.timeout, migrate=self._migrate)
        except StickyError:
            self.close()  # somebody else may migrate it meanwhile
            raise
        self._fits = True


def _notify(options: Mapping[str, Any]) -> Notify:
    """Read the transport options `notify` and `listen_url`."""
    url = options.get("listen_url")
    if url is None:
        return Notify(rings=bool(options.get("notify", True)))
    listen = Address.parse(str(url))
    if listen.kind != "postgresql":
        raise InvalidSettings(f"listen_url is {listen.shown}: only PostgreSQL can notify; leave it out")
    return Notify(listen, bool(options.get("notify", True)))
