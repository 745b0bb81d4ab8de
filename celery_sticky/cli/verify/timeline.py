"""The timeline: the faults that were injected and when, for the checker and the report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.judge import Overlap

if TYPE_CHECKING:
    from celery_sticky.cli.verify.faults.base import Fault

EVERYBODY = "*"
THAWING = 1_000_000_000
"""Nanoseconds after a paused process resumes in which it may run a little more code."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Processes that were paused (SIGSTOP)."""

    worker: str
    pids: frozenset[int]
    since: int
    until: int

    def explains(self, overlap: Overlap) -> bool:
        """Return True if the first run was paused and the second began meanwhile under a higher epoch."""
        first, second = overlap.first.start, overlap.second.start
        fenced = first.epoch is not None and second.epoch is not None and second.epoch > first.epoch
        meanwhile = first.at <= self.until and self.since <= second.at <= self.until + THAWING
        return fenced and first.pid in self.pids and meanwhile

    def first_starts(self, events: Iterable[Event]) -> set[Event]:
        """Return the first start of each process after it resumed, as it may have been paused just before the task.

        A little code runs between the last check of the lease and the first line of the task.
        """
        firsts: dict[int, Event] = {}
        for event in events:
            if event.kind is Kind.START and event.pid in self.pids and event.at >= self.until:
                firsts[event.pid] = min(event, firsts.get(event.pid, event), key=lambda start: start.at)
        return {start for start in firsts.values() if start.at <= self.until + THAWING}


@dataclass(slots=True)
class Done:
    """An injected fault. Times are CLOCK_MONOTONIC nanoseconds."""

    fault: Fault
    since: int
    until: int = 0
    hit: set[str] = field(default_factory=set)
    """Workers whose tasks may have to run again; EVERYBODY for a fault of a server."""
    before: View | None = None
    after: View | None = None
    """The owners before the fault, and after the slots had settled again; None if unknown."""
    note: str = ""
    forgot_until: int = 0
    """The broker lost the messages that it accepted from `since` until then; 0 if it lost none."""

    def forgot(self, event: Event) -> bool:
        """Return True if the broker lost a message that was accepted at the time of this event."""
        return self.since <= event.at <= self.forgot_until

    def excuses(self, worker: str, since: int, until: int) -> bool:
        """Return True if this fault explains that a task of that worker, running in that period, runs again."""
        return bool(self.hit & {worker, EVERYBODY}) and self.since <= until and since <= self.until


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of all faults."""

    began: int
    done: Sequence[Done]
    frozen: Sequence[Frozen]
    restarts: Collection[Done]
    """Restarts of workers that a poison message had killed."""
    skipped: Sequence[str] = ()
    crashes: Sequence[str] = ()
    """Workers that ended without a known reason, with the end of their log."""

    @property
    def faults(self) -> Sequence[Done]:
        """The injected faults, and the restarts."""
        return [*self.done, *self.restarts]

    def during(self, since: int, until: int) -> Sequence[Done]:
        """Return the faults that lasted at some time in that period."""
        return [one for one in self.faults if one.since <= until and since <= one.until]
