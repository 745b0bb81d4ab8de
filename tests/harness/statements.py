"""Counts the statements that this process sends to databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from celery_sticky.sql.link import Link


class Statements(list[str]):
    """The statements that were sent, in order."""

    def of(self, *words: str) -> list[str]:
        """Return those that contain one of these words."""
        return [one for one in self if any(word in one for word in words)]

    @property
    def rings(self) -> list[str]:
        """Those that ring."""
        return self.of("pg_notify")

    @property
    def work(self) -> list[str]:
        """All others, without the beginning and the end of transactions."""
        around = ("BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK")
        return [one for one in self if "pg_notify" not in one and not one.startswith(around)]


@contextmanager
def counted() -> Iterator[Statements]:
    """Count what all connections of this process send during the block."""
    sent, original = Statements(), Link._run

    def run(link: Link, statement: str, said: Any) -> Any:
        sent.append(statement)
        return original(link, statement, said)

    with patch.object(Link, "_run", run):
        yield sent
