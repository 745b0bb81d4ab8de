"""Workers start and stop gracefully, as in deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celery_sticky.cli.verify.faults.base import Fault

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.timeline import Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Fault):
    """SIGTERM to a worker; it starts again when it has ended."""

    name: ClassVar[str] = "term"
    takes: ClassVar[float] = 4.0
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose a worker, and the name under which it starts again."""
        name = cast.one()
        return cls(workers=(name,), starts=(cast.replaced(name),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Stop the worker and start it again."""
        (worker,) = nemesis.end(self.workers, done)
        nemesis.succeed(worker, self.starts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Fault):
    """A worker joins."""

    name: ClassVar[str] = "join"
    takes: ClassVar[float] = 3.5
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self | None:
        """Name the newcomer."""
        return None if cast.full else cls(starts=(cast.joined(),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Start the newcomer."""
        nemesis.cluster.start(self.starts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Fault):
    """A worker leaves."""

    name: ClassVar[str] = "leave"
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self | None:
        """Choose a worker, if enough remain for the other faults."""
        return cls.last(cast) if len(cast.everybody) > cast.least else None

    @classmethod
    def last(cls, cast: Cast) -> Self:
        """Choose a worker; no other fault follows."""
        return cls(workers=(cast.left(),))

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Stop the worker for good."""
        nemesis.end(self.workers, done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling(Fault):
    """All workers restart one by one, under the same names or new ones."""

    name: ClassVar[str] = "rolling"
    takes: ClassVar[float] = 0.0
    each: ClassVar[float] = 3.5
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose between the same names and new ones."""
        old = cast.everybody
        return cls(workers=old, starts=old if cast.draw.random() < 0.5 else cast.all_replaced())

    @property
    def detail(self) -> Mapping[str, Any]:
        """Whether names change."""
        return {"names": "same names" if self.workers == self.starts else "new names"}

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Restart one worker after the other."""
        for name, successor in zip(self.workers, self.starts, strict=True):
            (worker,) = nemesis.end([name], done)
            nemesis.succeed(worker, successor)
            nemesis.ready(successor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge(Fault):
    """The same number of new workers starts, then all old ones stop at once."""

    name: ClassVar[str] = "surge"
    takes: ClassVar[float] = 0.0
    each: ClassVar[float] = 2.5
    graceful: ClassVar[bool] = True

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Name the new workers."""
        old = cast.everybody
        return cls(workers=old, starts=cast.all_replaced())

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Start the new workers, then stop the old ones."""
        for name, successor in zip(self.workers, self.starts, strict=True):
            nemesis.cluster.successor(name, successor)
            nemesis.cluster.start(successor)
        for successor in self.starts:
            nemesis.ready(successor)
        nemesis.end(self.workers, done)
