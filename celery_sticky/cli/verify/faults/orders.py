"""Extra messages: the fault is an order to a sender, which carries it out in its own process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from celery_sticky.cli.verify.app import POISON, RECORD
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.jobs import STEADY
from celery_sticky.cli.verify.malformed import MALFORMED

if TYPE_CHECKING:
    from celery_sticky.cli.verify.cast import Cast
    from celery_sticky.cli.verify.load import Sender
    from celery_sticky.cli.verify.nemesis import Nemesis
    from celery_sticky.cli.verify.timeline import Done

SLOW = 30.0
"""Duration of a slow task, in seconds."""
QUICK = 0.01
"""Duration of a task that only has to run, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Fault):
    """An order to one sender. Its fields travel as JSON."""

    settles: ClassVar[bool] = False

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Give the order."""
        nemesis.order(self)

    def send(self, sender: Sender) -> None:
        """Carry the order out, in the process of the sender."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom(Order):
    """A poison message between two ordinary ones of its key: the task kills its process, or its worker."""

    name: ClassVar[str] = "oom"
    takes: ClassVar[float] = 2.0

    number: int

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Number the poison, so that each has its own key."""
        return cls(number=cast.number())

    def send(self, sender: Sender) -> None:
        """Send the poison and its neighbours."""
        for task in (RECORD, POISON, RECORD):
            sender.send(task, f"oom{self.number}", QUICK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst(Order):
    """A few hundred tasks at once."""

    name: ClassVar[str] = "burst"

    tasks: int

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose the number of tasks."""
        return cls(tasks=cast.draw.choice((100, 200, 400)))

    def send(self, sender: Sender) -> None:
        """Send tasks of the usual mix."""
        for _ in range(self.tasks):
            sender.ordinary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Order):
    """A few slow tasks; or one in the slot of a job, whose worker then stops and starts again."""

    name: ClassVar[str] = "slow"

    tasks: int = 3
    beside_job: bool = False
    key: str = ""
    """The key of the tasks; empty: each has an ordinary key."""
    seconds: float = SLOW

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """There is nothing to choose."""
        return cls()

    @property
    def detail(self) -> Mapping[str, Any]:
        """What differs from an ordinary occurrence."""
        own = {"beside_job": True, "key": self.key, "seconds": self.seconds} if self.beside_job else {}
        return {"tasks": self.tasks, **own}

    def __str__(self) -> str:
        """Return the line of the timeline."""
        return f"{self.name} {self.tasks}" + (" beside a job" if self.beside_job else "")

    def do(self, nemesis: Nemesis, done: Done) -> None:
        """Give the order; beside a job, also have the slot handed over while the task runs."""
        if not self.beside_job:
            nemesis.order(self)
        elif (name := nemesis.steady_job()) is not None:
            nemesis.order(replace(self, key=STEADY, seconds=nemesis.beyond_job_limit))
            if nemesis.begun(STEADY):
                (worker,) = nemesis.end([name], done)
                nemesis.succeed(worker, name)
                nemesis.ready(name)
                nemesis.settle(done)

    def send(self, sender: Sender) -> None:
        """Send the slow tasks."""
        for _ in range(self.tasks):
            sender.send(RECORD, self.key or sender.any_key(), self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Big(Order):
    """A few big messages."""

    name: ClassVar[str] = "big"
    takes: ClassVar[float] = 2.0

    tasks: int = 4
    megabytes: int

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose the size."""
        return cls(megabytes=cast.draw.choice((1, 3, 10)))

    def send(self, sender: Sender) -> None:
        """Send the big messages."""
        padding = "x" * (self.megabytes << 20)
        for _ in range(self.tasks):
            sender.send(RECORD, sender.any_key(), QUICK, headers={"padding": padding})


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed(Order):
    """Messages that no worker can read, each followed by an ordinary task of its key."""

    name: ClassVar[str] = "malformed"
    not_stock: ClassVar[str] = "plain Celery runs here without results and without a dead queue"

    messages: int

    @classmethod
    def draft(cls, cast: Cast) -> Self:
        """Choose the number of messages."""
        return cls(messages=cast.draw.choice((10, 20, 40)))

    def send(self, sender: Sender) -> None:
        """Send malformed messages of different kinds."""
        for wrong in sender.draw.sample(sorted(MALFORMED), self.messages):
            key = sender.any_key()
            sender.send_malformed(wrong, key)
            sender.send(RECORD, key, QUICK)  # an innocent message in the same batch
