"""What the pump hands to the consumer's loop. A socket pair wakes the loop, so a hub or a `select` can wait for it."""

from __future__ import annotations

import math
import select
import socket
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
        """Make the descriptor readable."""
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
        """Wait until the descriptor is readable, at most `timeout` seconds."""
        poll = select.poll()  # `select.select` has a limit of 1,024 descriptors
        poll.register(self._reader, select.POLLIN)
        poll.poll(None if timeout is None else math.ceil(timeout * 1000))

    def quiet(self) -> None:
        """Read the descriptor empty. The caller looks for deliveries after this."""
        with suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Close the sockets."""
        self._reader.close()
        self._writer.close()
