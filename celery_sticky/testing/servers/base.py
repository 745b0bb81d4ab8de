"""The protocol of the servers that tests, the demo and `verify` run against: some are started here, one may be given.

A server says in `lacks` which abilities it does not have, and why; nobody asks of which kind it is.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol

from celery_sticky.testing.proxy import tcp_address


class Ability(StrEnum):
    """What a fault may need of a server, beyond an address."""

    RESTART = "restart"
    """`kill`, `stop` and `start`, at the same address."""
    FREEZE = "freeze"
    ROLL_BACK = "roll back"
    """`copy` and `restore`."""
    FILL = "fill"
    """`impaired`: it has no room for new data."""
    SPOIL = "spoil"
    """`impaired`: a record of one slot queue is unusable, or the server refuses to change its records."""
    LOCK = "lock"
    """`impaired`: another program holds the lock that writers need."""
    READ_ONLY = "read-only"
    """`impaired`: it refuses all writes."""
    HOLD = "hold"
    """`impaired`: a transaction is open and keeps its snapshot."""
    DEADLOCK = "deadlock"
    """`impaired`: it has just ended somebody's transaction to resolve a deadlock."""
    DISCONNECT = "disconnect"
    """`impaired`: it has just ended every connection."""
    FAIL_OVER = "fail over"
    """It is a `WatchedServer`."""
    PROXY = "proxy"
    """Its URL has the form that `Proxy` can stand before."""


class Server(Protocol):
    """A server that keeps messages or records."""

    @property
    def url(self) -> str:
        """The address in Celery's form."""

    def options(self, prefix: str = "") -> Mapping[str, Any]:
        """Return the transport options that go with `url`; with them, every name at the server starts with `prefix`."""

    @property
    def lacks(self) -> Mapping[Ability, str]:
        """The abilities that this server does not have, each with the reason."""

    def clear(self, prefix: str = "") -> None:
        """Delete everything whose name starts with `prefix`."""

    def find(self, texts: Iterable[str], prefix: str = "") -> set[str]:
        """Return those of `texts` that stand in some message or record whose name starts with `prefix`."""

    def teardown(self) -> None:
        """End a server that was started here and delete its files. May be called twice."""


class OwnServer(Server, Protocol):
    """A server that was started here. Its address and its data survive a restart.

    Where there is no process, as with a SQLite file, the verbs for a process do nothing, and `lacks` says so.
    """

    def start(self) -> OwnServer:
        """Start the server and wait until it answers."""

    def freeze(self) -> None:
        """Freeze the server: connections stay open and nothing is answered."""

    def thaw(self) -> None:
        """Let a frozen server continue."""

    def kill(self) -> None:
        """SIGKILL the server: data that it had not written to disk is lost."""

    def stop(self) -> None:
        """SIGTERM the server."""

    def restart(self) -> None:
        """Start again on the same data; kill the server first if it runs."""

    def copy(self) -> None:
        """Keep a copy of the present data for `restore`."""

    def restore(self) -> None:
        """Bring the copy back: at once if the server runs, else with its next start."""

    def impaired(self, how: Ability, queues: Iterable[str] = ()) -> AbstractContextManager[bool]:
        """Impair the server while the block is open, by an ability that it does not lack.

        The block gets False if that was not possible at this moment. `queues`: the slot queues of which one is spoiled.
        """


class WatchedServer(Server, Protocol):
    """A primary with a replica that takes its place when it dies."""

    def caught_up(self) -> bool:
        """Return whether the replica has everything that the primary had at the time of the call."""

    def kill_primary(self) -> None:
        """SIGKILL the primary, and wait until the replica has its place."""

    def repair(self) -> None:
        """Start the killed server again as the replica of the other, and wait until it follows."""


def lacks_of_given(url: str, role: str) -> Mapping[Ability, str]:
    """Return what a server lacks that others may use too: everything but an address that a proxy can stand before."""
    found = dict.fromkeys(Ability, f"it needs a {role} that verify started itself")
    if tcp_address(url) is None:
        found[Ability.PROXY] = "its proxy works only for servers at a plain TCP address, such as redis://"
    else:
        del found[Ability.PROXY]
    return found


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
