"""Workers that live but are paused, cut off, stuck, or see another time of day."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celery_sticky.cli.verify.faketime import why_not
from celery_sticky.cli.verify.faults.base import Fault, Lasting
from celery_sticky.cli.verify.servers import Role
from celery_sticky.cli.verify.site import HANG, Mode
from celery_sticky.cli.verify.timeline import Frozen
from celery_sticky.testing.servers.base import Ability

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.options import RunOptions
    from celery_sticky.cli.verify.timeline import Done
    from celery_sticky.testing.proxy import Proxy

SKEWS = (-3600, -30, 30)
"""Possible jumps of a wall clock, in seconds. A jump ahead is short, because tasks deferred during it run that much
later."""
NOTICED = 3.0
"""Seconds for which a wall clock is wrong; the worker sees the change within 1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Lasting):
    """SIGSTOP to all processes of a worker for longer than the lease, then SIGCONT."""

    name: ClassVar[str] = "stop"
    takes: ClassVar[float] = 3.0
    evictions: ClassVar[int] = 1

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker."""
        name = cast.one()
        return cls(workers=(name,), seconds=cast.past_the_lease())

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Freeze the worker, and note which processes it froze."""
        (name,) = self.workers
        worker = nemesis.cluster.workers[name]
        done.hit.add(name)
        pids, since = frozenset(worker.processes), time.monotonic_ns()
        worker.freeze()
        time.sleep(self.seconds)  # the fault itself
        until = time.monotonic_ns()
        worker.thaw()
        nemesis.frozen.append(Frozen(name, pids, since, until))


class Cut(StrEnum):
    """How a worker is cut off."""

    CUT = "cut"
    """Its connections are reset and new ones refused."""
    SILENCE = "silence"
    """Its connections stay open, and nothing arrives."""

    def before(self, proxy: Proxy) -> None:
        """Cut off everybody behind this proxy."""
        match self:
            case Cut.CUT:
                proxy.cut()
            case Cut.SILENCE:
                proxy.silence()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Lasting):
    """One worker is cut off from store, broker or both, for longer than the lease."""

    name: ClassVar[str] = "partition"
    takes: ClassVar[float] = 3.0
    evictions: ClassVar[int] = 1
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.BROKER, Ability.PROXY), (Role.STORE, Ability.PROXY))

    cut_from: str
    how: Cut

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose servers, the kind of cut, and a worker."""
        cut_from, how = cast.draw.choice(("store", "broker", "both")), cast.draw.choice(tuple(Cut))
        seconds = cast.past_the_lease()
        return cls(workers=(cast.one(),), cut_from=cut_from, how=how, seconds=seconds)

    @property
    def detail(self) -> Mapping[str, Any]:
        """The servers, the kind of cut, and its length."""
        return {"from": self.cut_from, "how": str(self.how), "seconds": self.seconds}

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Cut the worker off, and heal its connections."""
        (name,) = self.workers
        done.hit.add(name)
        roles = zip((Role.BROKER, Role.STORE), nemesis.cluster.proxies[name], strict=True)
        stock = nemesis.cluster.run_options.mode is not Mode.STICKY  # it has a broker only
        cut = [proxy for role, proxy in roles if stock or self.cut_from in (role, "both")]
        for proxy in cut:
            self.how.before(proxy)
        time.sleep(self.seconds)  # the fault itself
        for proxy in cut:
            proxy.heal()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHang(Fault):
    """A callback blocks the Celery loop of a worker, while its threads continue."""

    name: ClassVar[str] = "loop-hang"
    takes: ClassVar[float] = 2.0
    evictions: ClassVar[int] = 2
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker."""
        return cls(workers=(cast.one(),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Let the loop hang."""
        (name,) = self.workers
        done.hit.add(name)
        nemesis.cluster.workers[name].kill(HANG)
        time.sleep(nemesis.cluster.site.hang)  # the fault itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock(Fault):
    """A worker's wall clock jumps."""

    name: ClassVar[str] = "clock"
    takes: ClassVar[float] = 3.0
    settles: ClassVar[bool] = False

    seconds: int

    @classmethod
    def impossible(cls, options: RunOptions) -> str | None:
        """Refuse a machine without a usable libfaketime."""
        return why_not()

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker and a jump."""
        name = cast.one()
        return cls(workers=(name,), seconds=cast.draw.choice(SKEWS))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Let the clock jump there and back."""
        (name,) = self.workers
        nemesis.cluster.set_clock(name, self.seconds)
        time.sleep(NOTICED)  # the fault itself
        nemesis.cluster.set_clock(name, 0)
