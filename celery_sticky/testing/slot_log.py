"""The log of slots opened and lost, which workers write beside the history."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SlotEvent:
    """A slot that a worker gained or lost."""

    what: str
    """`gained` or `lost`."""
    worker: str
    slot: int
    at: int
    """CLOCK_MONOTONIC in nanoseconds."""


class SlotLog:
    """Appends to the file beside a history, and reads it."""

    def __init__(self, history: Path) -> None:
        self._path = history.with_suffix(".slots")

    def write(self, what: str, worker: str, slots: Collection[int]) -> None:
        """Append one line."""
        line = json.dumps([what, worker, sorted(slots), time.monotonic_ns()]) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def events(self) -> list[SlotEvent]:
        """Return the events written so far."""
        if not self._path.exists():
            return []
        lines = [json.loads(line) for line in self._path.read_text().split("\n")[:-1]]
        return [SlotEvent(what, worker, slot, at) for what, worker, slots, at in lines for slot in slots]
