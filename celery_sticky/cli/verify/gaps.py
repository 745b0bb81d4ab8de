"""Gaps: the periods in which a dispatched job did not run, what explains each, and how much of it counts as late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from celery_sticky.cli.verify.bad_checker import SLACK, BadFindings
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import EVERYBODY, Frozen
from celery_sticky.testing.history import Event, Execution, Kind
from celery_sticky.testing.measure import SECOND

DISPATCH, PIN, BAD, UNEXPLAINED = "dispatch", "pin", "bad-job", "unexplained"
STOPPING = 3 * SECOND
"""Nanoseconds within which a job leaves its worker after its key belongs elsewhere."""
Period = tuple[int, int]
"""Beginning and end, in CLOCK_MONOTONIC nanoseconds."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which a dispatched job did not run."""

    wish: Event
    since: int
    until: int
    cause: str
    allowed: int
    """Start of the counted time: the last pin, the end of the last server fault, the first offence of a bad job or the
    fault that prolonged the gap, or the beginning of the gap."""
    open: bool
    """Whether the gap has not ended."""
    waited: int = 0
    """Nanoseconds of the counted time in which the process in which the job then ran was ready and had no CPU."""

    @property
    def seconds(self) -> float:
        """Length of the gap."""
        return (self.until - self.since) / SECOND

    @property
    def counted(self) -> float:
        """The seconds that count for being late."""
        return (self.until - self.allowed - self.waited) / SECOND


@dataclass(frozen=True, slots=True)
class CpuWaits:
    """For how long each process was ready to run but had no CPU, as its signs of life tell."""

    signs: Mapping[int, Sequence[Event]]
    """Process id -> its signs of life, in order."""

    @classmethod
    def of(cls, ordered: Iterable[Event]) -> Self:
        """Return the waits in a history sorted by time."""
        signs: dict[int, list[Event]] = defaultdict(list)
        for event in ordered:
            if event.kind is Kind.ALIVE:
                signs[event.pid].append(event)
        return cls(signs)

    def within(self, pid: int, since: int, until: int) -> int:
        """Return the nanoseconds that a process waited in a period, in which it may have started.

        Signs are a moment apart: the result may have the wait of a moment too much.
        """
        signs = self.signs.get(pid, ())
        before = max((sign.waited for sign in signs if sign.at <= since), default=0)
        after = next((sign.waited for sign in signs if sign.at >= until), signs[-1].waited if signs else 0)
        return min(max(0, after - before), until - since)


@dataclass(frozen=True, slots=True)
class GapsOf:
    """Finds the gaps of one dispatch."""

    runs: Sequence[Execution]
    outcome: VerifyRun
    bad: BadFindings
    waits: CpuWaits

    def of(self, wish: Event, stopped: int | None) -> Iterable[Gap]:
        """Yield the gaps of a job that was dispatched, and stopped then; None: it was not stopped."""
        moves, seen = self.outcome.moves, self.outcome.jobs_seen
        end, at = stopped or seen, wish.at
        spells = sorted(spell for run in self.runs for spell in _spells(run, self.outcome.timeline.frozen))
        for since, until in [*spells, (end, end)]:
            if (gap_end := min(since, end)) > at:
                missing = stopped is None and gap_end == seen
                if not (missing and _nowhere(wish.key, gap_end, moves)):  # else it waits until a worker pins its key
                    yield self._gap(wish, at, gap_end, missing=missing)
            at = max(at, until)

    def _gap(self, wish: Event, since: int, until: int, *, missing: bool) -> Gap:
        before = next((run for run in self.runs if run.until == since), None)
        then = next((run for run in self.runs if run.start.at == until), None)
        pinned = _pinned(wish.key, since, until, self.outcome.moves)
        cause = DISPATCH if since == wish.at else self._cause(since, until, before, pinned)
        whole = [one.until for one in self.outcome.timeline.during(since, until + SLACK) if EVERYBODY in one.hit]
        owners = {run.start.worker for run in (before, then) if run is not None} | self._owners(wish.key, since, until)
        allowed = self._prolonged(max([since, pinned or since, *whole]), since, until, owners)
        waited = 0 if then is None else self.waits.within(then.start.pid, allowed, until)
        return Gap(wish, since, until, cause, allowed, missing, waited)

    def _cause(self, since: int, until: int, before: Execution | None, pinned: int | None) -> str:
        """Return what explains a gap: a fault that hit the job's worker precedes one that hit another."""
        if before is not None and self.bad.explains(before):
            return BAD  # a fault meanwhile has hit another worker
        concerned = {short(before.start.worker), EVERYBODY} if before is not None else set()
        faults = sorted(
            self.outcome.timeline.during(since, until + SLACK), key=lambda one: one.hit.isdisjoint(concerned)
        )
        return faults[0].fault.name if faults else UNEXPLAINED if pinned is None else PIN

    def _owners(self, key: str, since: int, until: int) -> set[str]:
        """Return the workers that may have got the job's slot or key in that period."""
        if self.outcome.moves is not None:
            return {worker for worker in self.outcome.moves.workers(key, since, until) if worker is not None}
        slots = {run.start.slot for run in self.runs}
        log = (event for event in self.outcome.slot_events if event.slot in slots and event.what == "gained")
        return {event.worker for event in log if since <= event.at <= until}

    def _prolonged(self, at: int, since: int, until: int, owners: Collection[str]) -> int:
        """Return from when a gap counts that counted from `at`, if more happened meanwhile to those who had the job.

        A fault may hit the worker after a first offence has ended its process there. First offences may end the
        processes in which it is to start. Nothing excuses a job that was late before.
        """
        hits = [one for one in self.outcome.timeline.during(since, until) if not one.hit.isdisjoint(map(short, owners))]
        periods: list[Period] = [(one.since, one.since) for one in hits]
        periods += [period for worker in owners for period in self.bad.first_offences(worker, since, until)]
        for begin, end in sorted(periods):
            if begin - at <= self.outcome.job_limit * SECOND:
                at = max(at, end)
        return at


def _spells(run: Execution, frozen: Sequence[Frozen]) -> Iterable[Period]:
    """Yield the periods in which a run made progress, without those in which its process was paused."""
    at = run.start.at
    for spell in frozen:
        if run.start.pid in spell.pids and at < spell.until and spell.since < run.until:
            yield at, max(at, spell.since)
            at = spell.until
    if at < run.until:
        yield at, run.until


def _pinned(key: str, since: int, until: int, moves: Moves | None) -> int | None:
    return moves.pinned(key, since - STOPPING, until) if moves is not None else None


def _nowhere(key: str, at: int, moves: Moves | None) -> bool:
    """Return True if the key may have belonged to no worker at that time."""
    return moves is not None and None in moves.workers(key, at, at)
