"""What is asked of a caller's connection, and the placeholders of the libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, runtime_checkable

Said = Sequence[Any]
AUTOCOMMIT = "is in autocommit mode and has no open transaction"


@runtime_checkable
class Caller(Protocol):
    """A connection whose calls return when the database has answered. Errors of its library pass through."""

    kind: str
    """`postgresql`, `mysql`, `sqlite`, or the name of a database that is none of them."""

    def value(self, query: str) -> Any:
        """Run a query that has no parameters and returns one value."""

    def run(self, statement: str, said: Said) -> None:
        """Run a statement, whose placeholders are `%s`."""

    def autocommits(self) -> bool:
        """Return whether a statement would be committed by itself, as far as the library says."""

    def after_commit(self, call: Callable[[], None]) -> None:
        """Have a function called after the transaction's commit, if the library tells of commits."""


@runtime_checkable
class AsyncCaller(Protocol):
    """A connection whose calls are awaited. Its outbox keeps what is sent in a block until it can be written."""

    kind: str
    """See `Caller.kind`."""

    async def value(self, query: str) -> Any:
        """See `Caller.value`."""

    async def run_all(self, statements: Statements) -> None:
        """Run statements, in order."""

    async def autocommits(self) -> bool:
        """See `Caller.autocommits`."""

    async def watch(self, take: Take) -> Callable[[], None]:
        """Keep an outbox in step with savepoints, commits and rollbacks, if the library tells of them.

        What `take` returns is run before a savepoint and a commit, and thrown away in a rollback. Return the function
        that ends this.
        """

    def after_commit(self, call: Callable[[], None]) -> None:
        """See `Caller.after_commit`."""


Statements = Sequence[tuple[str, Said]]
Take = Callable[[], Statements]
"""Returns the statements that were not run yet, and forgets them."""


def libraries(connection: Any) -> set[str]:
    """Return the names of the packages that a connection's class and its bases come from."""
    return {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}


def loaded(module: str, name: str) -> tuple[Any, ...]:
    """Return a class as a tuple for `isinstance`; an empty one if its module was not imported."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def styled(statement: str, style: str) -> str:
    """Return a statement with the placeholders of a parameter style of DB-API 2.0 or SQLAlchemy."""
    if style == "qmark":
        return statement.replace("%s", "?")
    if style == "numeric_dollar":
        numbers = count(1)
        return "".join(part if part != "%s" else f"${next(numbers)}" for part in _split(statement))
    return statement  # format, pyformat


def first(row: Any) -> Any:
    """Return the first value of a row: a tuple, or a mapping if the connection makes such rows."""
    return next(iter(row.values())) if isinstance(row, Mapping) else row[0]


def _split(statement: str) -> list[str]:
    """Return the parts of a statement, and its placeholders, in order."""
    parts = statement.split("%s")
    return [piece for part in parts[:-1] for piece in (part, "%s")] + [parts[-1]]
