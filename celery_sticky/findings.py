"""What a check of an installation has found, for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    WRONG = "wrong"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    level: Level
    text: str


def wrong(text: str) -> Finding:
    """Return a finding that must be fixed."""
    return Finding(Level.WRONG, text)


def note(text: str) -> Finding:
    """Return a finding that may be intended."""
    return Finding(Level.NOTE, text)
