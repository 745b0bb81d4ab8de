"""The store or the result backend has a fault."""

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
class StoreRollback(Fault):
    """An older copy of the store comes back, with a restart of the server or in place."""

    name: ClassVar[str] = "store-rollback"
    takes: ClassVar[float] = 2.0
    evictions: ClassVar[int] = 1
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.STORE, Ability.ROLL_BACK),)
    not_stock: ClassVar[str] = "plain Celery has no store"

    how: str

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose between a restart and a restore in place."""
        return cls(how=cast.draw.choice(("restart", "in place")))

    def prepare(self, nemesis: Nemesis) -> None:
        """Take the copy that comes back."""
        nemesis.cluster.servers.own(Role.STORE).copy()

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Bring the copy back."""
        server = nemesis.cluster.servers.own(Role.STORE)
        done.hit.add(EVERYBODY)
        if self.how == "restart":
            server.kill()
            server.restore()
            server.start()
        else:
            server.restore()
        time.sleep(nemesis.cluster.site.eviction_timeout)  # workers may notice the rollback only by then


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAway(Lasting):
    """The result backend is down; with this fault workers store results, on a separate server."""

    name: ClassVar[str] = "backend-away"
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ((Role.RESULTS, Ability.RESTART),)
    not_stock: ClassVar[str] = "plain Celery runs here without results and without a dead queue"
    takes: ClassVar[float] = 6.0

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Draw the length."""
        return cls(seconds=cast.seconds(2.0, 5.0))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Stop the backend; tasks end, but their results cannot be stored."""
        server = nemesis.cluster.servers.own(Role.RESULTS)
        server.kill()
        time.sleep(self.seconds)  # the fault itself
        server.start()
