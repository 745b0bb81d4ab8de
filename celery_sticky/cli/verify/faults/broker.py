"""The broker has a fault."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from celery_sticky.cli.verify.faults.base import Fault, Lasting
from celery_sticky.cli.verify.servers import Role, plays_on_pair
from celery_sticky.cli.verify.timeline import EVERYBODY
from celery_sticky.keys import queue_name
from celery_sticky.testing.servers import Kind
from celery_sticky.testing.servers.base import Ability
from celery_sticky.testing.waiting import wait_until

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.options import RunOptions
    from celery_sticky.cli.verify.timeline import Done

AWAY = 0.5
"""Seconds for which no server answers in a restart."""
LAG = 500_000_000
"""Nanoseconds by which a replica that has caught up may be behind when its primary dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRestart(Fault):
    """The broker gets SIGKILL or SIGTERM and starts on the same data."""

    name: ClassVar[str] = "broker-restart"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.RESTART),)
    takes: ClassVar[float] = 3.0

    how: str

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose the signal."""
        return cls(how=cast.draw.choice(("kill", "term")))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """End the broker and start it again."""
        server = nemesis.cluster.servers.own(Role.BROKER)
        done.hit.add(EVERYBODY)
        if self.how == "kill":
            server.kill()
        else:
            server.stop()
        time.sleep(AWAY)  # the fault itself
        server.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFreeze(Lasting):
    """The broker gets SIGSTOP for a while."""

    name: ClassVar[str] = "broker-freeze"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.FREEZE),)
    takes: ClassVar[float] = 3.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(0.5, 4.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Freeze the broker."""
        server = nemesis.cluster.servers.own(Role.BROKER)
        done.hit.add(EVERYBODY)
        server.freeze()
        time.sleep(self.seconds)  # the fault itself
        server.thaw()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRollback(Lasting):
    """The broker comes back with older data."""

    name: ClassVar[str] = "broker-rollback"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.ROLL_BACK),)
    takes: ClassVar[float] = 4.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the age of the data."""
        return cls(seconds=cast.seconds(0.5, 2.5))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Restart the broker on a copy of its data, and note what it forgot."""
        server = nemesis.cluster.servers.own(Role.BROKER)
        done.hit.add(EVERYBODY)
        server.copy()
        time.sleep(self.seconds)  # the fault itself: the broker will lose what it accepts now
        server.kill()
        server.restore()
        done.forgot_until = time.monotonic_ns()
        server.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover(Fault):
    """The primary is killed and its replica promoted."""

    name: ClassVar[str] = "failover"
    takes: ClassVar[float] = 8.0

    @classmethod
    def impossible(cls, options: RunOptions) -> str | None:
        """Refuse a given broker, and a run with faults that need a broker with a fixed address."""
        if options.broker is not None or options.server is not Kind.VALKEY:
            return "it needs a Valkey that verify started itself"
        others = sorted(other.name for other in options.faults if not plays_on_pair(other.needs))
        return f"{', '.join(others)} need a broker with a fixed address: leave them out" if others else None

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """There is nothing to choose."""
        return cls()

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Kill the primary, and note what the replica may not have had."""
        pair = nemesis.cluster.servers.watched
        assert pair is not None
        done.hit.add(EVERYBODY)
        with suppress(AssertionError):  # under load the replica may always lack the last few bytes
            wait_until(pair.caught_up, 2.0)
            done.since = time.monotonic_ns() - LAG
        pair.kill_primary()
        done.forgot_until = time.monotonic_ns()
        pair.repair()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFull(Lasting):
    """The broker has no memory left: it refuses senders, workers continue."""

    name: ClassVar[str] = "broker-full"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.FILL),)
    takes: ClassVar[float] = 3.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(1.0, 3.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Let the broker be full."""
        done.hit.add(EVERYBODY)
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.FILL):
            time.sleep(self.seconds)  # the fault itself


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongType(Lasting):
    """A record of one slot is unusable: that slot stops, the others continue."""

    name: ClassVar[str] = "wrong-type"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.SPOIL),)
    not_stock: ClassVar[str] = "plain Celery has no slot records"
    takes: ClassVar[float] = 5.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(0.5, 2.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Spoil a slot that has no message in flight."""
        site = nemesis.cluster.site
        done.hit.add(EVERYBODY)
        slots = nemesis.draw.sample(range(site.slots), site.slots)
        queues = (site.prefix + queue_name(site.keyspace, slot) for slot in slots)
        with nemesis.cluster.servers.own(Role.BROKER).impaired(Ability.SPOIL, queues) as spoiled:
            if spoiled:
                time.sleep(self.seconds)  # the fault itself
            else:
                done.note = "every slot had messages in flight at that moment"
