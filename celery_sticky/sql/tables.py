"""The names of our tables: a prefix, possibly with a schema before it, that is put into statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from celery_sticky.errors import InvalidSettings

DEFAULT = "sticky_"
_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,30}\.)?[a-z_][a-z0-9_]{0,30}")
_TABLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one installation."""

    prefix: str = DEFAULT
    """The beginning of every table's name: `sticky_`, or `myschema.sticky_` for tables in an existing schema."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.prefix) is None:
            raise InvalidSettings(
                f"{self.prefix!r} cannot begin the names of tables: lower-case letters, digits and '_' can, after an "
                "optional schema and a dot"
            )

    def name(self, table: str) -> str:
        """Return the name of a table."""
        return self.prefix + table

    def fill(self, statement: str) -> str:
        """Return the statement with the names of tables in the place of `{message}`, `{fence}` and so on."""
        return _filled(self.prefix, statement)


@lru_cache(maxsize=512)
def _filled(prefix: str, statement: str) -> str:
    return _TABLE.sub(lambda found: prefix + found[1], statement)


def named(statement: str) -> list[str]:
    """Return the tables that a statement names, without the prefix."""
    return _TABLE.findall(statement)
