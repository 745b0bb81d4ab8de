"""Waiting for sockets and wake-ups, in threads and in greenlets."""

from __future__ import annotations

import contextlib
import selectors
import socket
from typing import Protocol


class Readable(Protocol):
    """A socket, or something that has one."""

    def fileno(self) -> int:
        """Return the descriptor of the socket."""


def selector() -> selectors.BaseSelector:
    """Return a selector for one check of a few sockets."""
    # For two sockets and one check, poll(2) takes one system call, epoll five. A monkey-patched process has its own.
    if selectors.DefaultSelector is getattr(selectors, "EpollSelector", None):
        return selectors.PollSelector()
    return selectors.DefaultSelector()


class Waker:
    """Ends a wait from another thread through a pair of sockets, which every event loop can wait for."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def wait(self, timeout: float, other: Readable | None) -> tuple[bool, bool]:
        """Wait until `wake` is called or `other` is readable; return which."""
        # A new selector each time: a long-lived one breaks when the event loop of a monkey-patched process changes.
        with selector() as waiting:
            waiting.register(self._near, selectors.EVENT_READ)
            if other is not None:
                waiting.register(other, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in waiting.select(max(timeout, 0))}
        woken = self._near in ready
        if woken:
            with contextlib.suppress(BlockingIOError):
                self._near.recv(4096)
        return woken, other in ready

    def wake(self) -> None:
        """End the wait under way, or the next one. Any thread may call this."""
        with contextlib.suppress(OSError):  # buffer full: already awake; closed: nobody waits
            self._far.send(b"w")

    def close(self) -> None:
        """Close the sockets."""
        self._near.close()
        self._far.close()
