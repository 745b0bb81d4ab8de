"""Work beside the load: a thread that runs while a `with` block is open."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

JOIN = 30.0
"""Seconds that the last turn may take."""


class Beside(ABC):
    """Takes a turn again and again, in a thread, until the block ends."""

    def __init__(self, *, idle: bool = False) -> None:
        """Do nothing if `idle`."""
        self._ended = threading.Event()
        self._thread = None if idle else threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it after its present turn."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(JOIN)

    def _run(self) -> None:
        while not self._ended.wait(self._pause()):
            self._turn()

    @abstractmethod
    def _pause(self) -> float:
        """Return the number of seconds until the next turn."""

    @abstractmethod
    def _turn(self) -> None:
        """Do the work of a turn."""
