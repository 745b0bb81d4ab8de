"""Everything about a keyspace that one statement reads, and so from one instant, without any lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_sticky.errors import StickyError
from celery_sticky.ownership.view import View
from celery_sticky.sql import Runner
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.link import Row
from celery_sticky.sql.schema import STORE
from celery_sticky.sql.tables import Tables
from celery_sticky.stores.placement import NO_VERSION, Version


@dataclass(slots=True)
class Snapshot:
    """A keyspace at one instant."""

    clock: float = 0.0
    """The database's clock, in seconds since the Unix epoch."""
    store_id: str = ""
    version: Version = NO_VERSION
    written_to: str = ""
    """The id of the store to which the document was written."""
    document: bytes = b""
    """The document, if it was asked for and there is one."""
    counters: dict[str, int] = field(default_factory=dict)
    """Incarnation -> heartbeat counter."""
    heard: dict[str, float] = field(default_factory=dict)
    """Incarnation -> when it joined or sent its last heartbeat, by the database's clock."""

    def add(self, row: Row) -> None:
        """Take in a row of the statement."""
        kind, name, number, other, at, store, server, _ = row
        match kind:
            case "moment":
                self.clock, self.store_id = float(at), f"{bytes(store).decode()}.{server}"
            case "view":
                self.document, self.version, self.written_to = bytes(name), (number, other), bytes(store).decode()
            case _:
                incarnation = bytes(name).decode()
                self.counters[incarnation], self.heard[incarnation] = number, float(at)


class Snapshots:
    """Reads one keyspace."""

    def __init__(self, dialect: Dialect, scope: bytes) -> None:
        self._dialect, self._scope = dialect, scope
        self._moment = (
            "SELECT 'moment' AS kind, value AS name, 0 AS number, 0 AS other, "
            f"{dialect.clock} AS at, value AS store, {dialect.server} AS server, {dialect.synchronous} AS synchronous "
            "FROM {meta} WHERE name = %s"
        )

    def lock(self, inside: Runner) -> None:
        """Lock the row of the view until the transaction ends, if there is one: every change begins so."""
        inside.rows(f"SELECT t.version FROM {{view}} t WHERE t.scope = %s{self._dialect.update}", [self._scope])

    def read(self, runner: Runner, *, document: bool = False, only: str | None = None) -> Snapshot:
        """Read the keyspace: `document` too, or the counter of `only` one incarnation.

        In a transaction, the commit waits for the disk from now on.
        """
        statement = (
            f"{self._moment} UNION ALL "
            f"SELECT 'view', {'document' if document else 'scope'}, version, generation, 0, store_id, '', '' "
            "FROM {view} WHERE scope = %s UNION ALL "
            "SELECT 'heartbeat', incarnation, counter, 0, heard, scope, '', '' FROM {heartbeat} WHERE scope = %s"
        )
        said = [STORE, self._scope, self._scope]
        if only is not None:
            statement, said = f"{statement} AND incarnation = %s", [*said, only.encode()]
        found = Snapshot()
        for row in runner.rows(statement, said):
            found.add(row)
        return found


def parsed(document: bytes, tables: Tables, scope: bytes) -> View:
    """Return the view in a stored document.

    Raises:
        DocumentDamaged, DocumentTooNew: this release cannot read it.
    """
    try:
        return View.from_bytes(document)
    except StickyError as error:
        raise type(error)(f"table {tables.name('view')}, row {scope.decode()}: {error}") from error
