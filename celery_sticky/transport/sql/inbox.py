"""What the pump hands to the consumer's loop. A socket pair wakes a hub; a loop without one waits for an event."""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """A message for the consumers of a queue."""

    queue: str
    payload: dict[str, Any]
    tag: str | None
    """Settles it; None: there is nothing to settle."""


class Inbox:
    """One thread puts, another takes."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._filled = threading.Event()
        self._deliveries: deque[Delivery] = deque()
        self._error: Exception | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._reader.fileno()

    def put(self, deliveries: list[Delivery]) -> None:
        """Add deliveries and wake the loop."""
        self._deliveries.extend(deliveries)
        self.wake()

    def fail(self, error: Exception) -> None:
        """Raise an error in the loop: nothing will come any more."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Make the descriptor readable, and end the wait under way."""
        self._filled.set()
        with suppress(BlockingIOError, OSError):  # full: it is readable; closed: nobody reads
            self._writer.send(b"\0")

    def take(self) -> Delivery | None:
        """Return the next delivery, or None.

        Raises:
            Exception: that of `fail`.
        """
        if self._error is not None:
            raise self._error
        return self._deliveries.popleft() if self._deliveries else None

    def wait(self, timeout: float | None) -> None:
        """Wait until there is something, at most `timeout` seconds."""
        self._filled.wait(timeout)

    def quiet(self) -> None:
        """Read the descriptor empty. The caller looks for deliveries after this."""
        self._filled.clear()
        with suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Close the sockets."""
        self._reader.close()
        self._writer.close()
