"""The broker answers, but ends connections, or another program keeps it busy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from celery_sticky.cli.verify.faults.base import Fault, Lasting
from celery_sticky.cli.verify.servers import Role
from celery_sticky.cli.verify.timeline import EVERYBODY
from celery_sticky.testing.servers.base import Ability

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.timeline import Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect(Fault):
    """The broker ends every connection, and accepts new ones."""

    name: ClassVar[str] = "disconnect"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.DISCONNECT),)

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """There is nothing to choose."""
        return cls()

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """End the connections."""
        done.hit.add(EVERYBODY)
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.DISCONNECT):
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock(Lasting):
    """Another program locks the SQLite file, or PostgreSQL's table of messages, for a while."""

    name: ClassVar[str] = "lock"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.LOCK),)
    takes: ClassVar[float] = 4.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(2.0, 4.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Hold the lock."""
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.LOCK):
            done.hit.add(EVERYBODY)
            time.sleep(self.seconds)  # the fault itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnly(Lasting):
    """The database refuses all writes for a while, as a primary that was demoted does."""

    name: ClassVar[str] = "read-only"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.READ_ONLY),)
    takes: ClassVar[float] = 4.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(1.0, 4.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Let the database be read-only."""
        done.hit.add(EVERYBODY)
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.READ_ONLY):
            time.sleep(self.seconds)  # the fault itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock(Fault):
    """Another program locks messages and fences in the wrong order, and the database ends a worker's transaction."""

    name: ClassVar[str] = "deadlock"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.DEADLOCK),)
    takes: ClassVar[float] = 4.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """There is nothing to choose."""
        return cls()

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Provoke the deadlock."""
        done.hit.add(EVERYBODY)
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.DEADLOCK) as resolved:
            if not resolved:
                done.note = "no worker waited for a message at that moment, so there was no deadlock"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction(Fault):
    """A transaction stays open for the whole run, so that the database keeps the rows of messages that are gone."""

    name: ClassVar[str] = "open-transaction"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.HOLD),)
    settles: ClassVar[bool] = False

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """There is nothing to choose."""
        return cls()

    def prepare(self, nemesis: Nemesis) -> None:
        """Begin the transaction."""
        nemesis.cluster.held.enter_context(nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.HOLD))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Begin another one: a fault of the broker may have ended the first."""
        self.prepare(nemesis)
