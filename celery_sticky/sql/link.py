"""One connection of a client library, reduced to what we need: run a statement, get its rows or their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any]


class Link:
    """A connection in autocommit. `%s` is the placeholder of every dialect."""

    def __init__(self, raw: Any, *, cursor: Callable[[], Any] | None = None, placeholder: str = "%s") -> None:
        self.raw = raw
        self._cursor = cursor or raw.cursor
        self._placeholder = placeholder

    def rows(self, statement: str, said: Parameters = ()) -> list[Row]:
        """Run a statement and return its rows."""
        cursor = self._run(statement, said)
        try:
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def run(self, statement: str, said: Parameters = ()) -> int:
        """Run a statement and return how many rows it has changed."""
        cursor = self._run(statement, said)
        try:
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def run_and_ring(self, statement: str, said: Parameters, rings: Sequence[tuple[str, str]]) -> int:
        """Run a statement as `run` does, then ring: each a channel and a payload. Here nobody listens: it only runs."""
        return self.run(statement, said)

    @property
    def closed(self) -> bool:
        """Whether the connection was given up after a statement that succeeded."""
        return False

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()

    def _run(self, statement: str, said: Parameters) -> Any:
        if self._placeholder != "%s":
            statement = statement.replace("%s", self._placeholder)
        cursor = self._cursor()
        try:
            cursor.execute(statement, said)
        except BaseException:
            cursor.close()
            raise
        return cursor
