"""What a fault is: its class says everything about one kind, an object of it is one occurrence in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celery_sticky.cli.verify.servers import Role, lacks
from celery_sticky.cli.verify.site import Mode
from celery_sticky.testing.servers.base import Ability

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.options import RunOptions
    from celery_sticky.cli.verify.timeline import Done

EVERY = ("at", "workers", "starts")
"""The fields that every fault has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One occurrence of a fault."""

    name: ClassVar[str]
    needs: ClassVar[tuple[tuple[Role, Ability], ...]] = ()
    """The abilities that it needs of the servers of the run."""
    not_stock: ClassVar[str] = ""
    """The reason why it is impossible on plain Celery, if it is."""
    least: ClassVar[int] = 2
    """Minimum number of workers."""
    takes: ClassVar[float] = 1.0
    """Approximate number of seconds until the cluster has recovered, in addition to the next two."""
    evictions: ClassVar[int] = 0
    """How many times in a row it waits until a silent worker is evicted."""
    each: ClassVar[float] = 0.0
    """Approximate number of seconds for each worker of the run."""
    graceful: ClassVar[bool] = False
    """It waits until tasks have ended, so it comes before the slow tasks."""
    settles: ClassVar[bool] = True
    """It may move slots: it is over when every slot is at its target."""
    mixed_in: ClassVar[bool] = False
    """Senders mix it into the load all the time, so no plan has a time for it."""

    at: float = 0.0
    """Earliest time, in seconds since the load began. It also waits for the end of the previous fault."""
    workers: tuple[str, ...] = ()
    """The workers that it hits; for `rolling` and `surge` all workers, one after the other."""
    starts: tuple[str, ...] = ()
    """Names of the workers that start because of it."""

    @classmethod
    def impossible(cls, options: RunOptions) -> str | None:
        """Return why it is impossible in a run with these options, or None if it is possible."""
        if cls.not_stock and options.mode is not Mode.STICKY:
            return cls.not_stock
        reasons = (lacks(options, role).get(ability) for role, ability in cls.needs)
        return next((reason for reason in reasons if reason is not None), None)

    @classmethod
    def length(cls, eviction_timeout: float, workers: int) -> float:
        """Return the approximate number of seconds until the cluster has recovered."""
        return cls.takes + cls.evictions * eviction_timeout + cls.each * workers

    @classmethod
    def draft(cls, cast: Cast) -> Self | None:
        """Return an occurrence with targets from the cast; None if there are too few or too many workers now."""
        raise NotImplementedError  # faults that are mixed in have no occurrences

    def prepare(self, nemesis: Nemesis) -> None:
        """Do what must be done before the first fault of the run."""

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Inject the fault, undo it, and note in `done` what it hit and when."""
        raise NotImplementedError  # as above

    @property
    def detail(self) -> Mapping[str, Any]:
        """What was drawn for it, as the report and the timeline say it."""
        return {name: value for name, value in asdict(self).items() if name not in EVERY}

    def __str__(self) -> str:
        """Return the line of the timeline."""
        whom = " ".join(self.workers if len(self.workers) < 3 else (self.workers[0], "…", self.workers[-1]))
        return " ".join(word for word in (self.name, whom, *map(str, self.detail.values())) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting(Fault):
    """A fault that lasts for a drawn time before it is undone."""

    seconds: float
