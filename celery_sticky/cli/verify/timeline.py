"""What was done to the workers and when, as the judge and the report need it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from celery_sticky.cli.verify.plan import Step
from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.judge import Overlap

EVERYBODY = "*"
THAWING = 1_000_000_000
"""Nanoseconds after a process was thawed in which it may do its few more instructions."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Processes that stood still (SIGSTOP)."""

    worker: str
    pids: frozenset[int]
    since: int
    until: int

    def explains(self, overlap: Overlap) -> bool:
        """Whether the first run was frozen while it ran, and the second began meanwhile under a higher epoch."""
        first, second = overlap.first.start, overlap.second.start
        fenced = first.epoch is not None and second.epoch is not None and second.epoch > first.epoch
        meanwhile = first.at <= self.until and self.since <= second.at <= self.until + THAWING
        return fenced and first.pid in self.pids and meanwhile

    def first_starts(self, events: Iterable[Event]) -> set[Event]:
        """Return the first start of each process after its thaw: it may have been frozen on the way into the task.

        Between its last look at the lease and the first line of the task lie a few instructions, as inside the task.
        """
        firsts: dict[int, Event] = {}
        for event in events:
            if event.kind is Kind.START and event.pid in self.pids and event.at >= self.until:
                firsts[event.pid] = min(event, firsts.get(event.pid, event), key=lambda start: start.at)
        return {start for start in firsts.values() if start.at <= self.until + THAWING}


@dataclass(slots=True)
class Done:
    """A fault that was done. Times are CLOCK_MONOTONIC nanoseconds."""

    step: Step
    since: int
    until: int = 0
    hit: set[str] = field(default_factory=set)
    """Workers of which tasks may have run in vain; EVERYBODY for a fault of a server."""
    before: View | None = None
    after: View | None = None
    """The owners before, and when all was settled again; None where nobody could tell."""
    note: str = ""
    forgot_until: int = 0
    """The broker lost what it had accepted between `since` and then; 0: nothing."""

    def forgot(self, event: Event) -> bool:
        """Whether the broker lost the message of a task that was accepted then."""
        return self.since <= event.at <= self.forgot_until

    def excuses(self, worker: str, since: int, until: int) -> bool:
        """Whether this fault is why a task of that worker, running then, may run again."""
        return bool(self.hit & {worker, EVERYBODY}) and self.since <= until and since <= self.until


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that was done."""

    began: int
    done: Sequence[Done]
    frozen: Sequence[Frozen]
    restarts: Collection[Done]
    """Workers that died of a poison message and were started again, as a supervisor does."""
    skipped: Sequence[str] = ()
    crashes: Sequence[str] = ()
    """Workers that ended by themselves for no known reason, with the end of their log."""
