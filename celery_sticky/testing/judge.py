"""The checker of recorded histories: it finds every broken promise.

It reports only what the history proves. A run without a recorded end counts as over at its process's last known sign of
life, or at its death if the caller knows that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.testing.history import Event, Execution, Kind, pair


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two runs of one key at the same time."""

    first: Execution
    second: Execution


@dataclass(frozen=True, slots=True)
class Inversion:
    """A task that first ran after a later one of its key did."""

    late: Event
    early: Event


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A task that ran more than once: `runs` runs, of which `finished` finished. Not a broken promise by itself."""

    keyspace: str
    key: str
    n: int
    runs: int
    finished: int


@dataclass(frozen=True, slots=True)
class StaleStart:
    """A run under a lower epoch than one already seen for its slot, or for its key if it has no slot."""

    start: Event
    newest: int


@dataclass(frozen=True, slots=True)
class SharedEpoch:
    """Two workers ran tasks of one slot, or of one key, under the same epoch."""

    keyspace: str
    slot: Slot
    epoch: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The facts that a history proves."""

    published: int
    finished: int
    runs: int
    keys: int
    lost: tuple[Event, ...] = ()
    """PUBLISHED events of tasks that never finished."""
    overlaps: tuple[Overlap, ...] = ()
    inversions: tuple[Inversion, ...] = ()
    stale: tuple[StaleStart, ...] = ()
    shared: tuple[SharedEpoch, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not (self.lost or self.overlaps or self.inversions or self.stale or self.shared)

    def describe(self, limit: int = 5) -> str:
        """Return the figures and the first `limit` violations of each promise, one per line."""
        counts = (
            f"{self.published} published, {self.finished} finished in {self.runs} runs of {self.keys} keys: "
            f"{len(self.lost)} lost, {len(self.overlaps)} overlapping, {len(self.inversions)} out of order, "
            f"{len(self.stale)} under a stale epoch, {len(self.shared)} shared epochs, {len(self.duplicates)} run again"
        )
        return "\n".join([counts, *self._accusations(limit)])

    def _accusations(self, limit: int) -> list[str]:
        return [
            *(f"lost: {_task(e)}" for e in self.lost[:limit]),
            *(f"overlap: {_place(o.first.start)} and {_place(o.second.start)}" for o in self.overlaps[:limit]),
            *(f"out of order: {_place(i.late)} after {_place(i.early)}" for i in self.inversions[:limit]),
            *(f"stale epoch: {_place(s.start)}, {s.newest} was seen" for s in self.stale[:limit]),
            *(f"shared epoch: slot {s.slot}, epoch {s.epoch}: {', '.join(s.workers)}" for s in self.shared[:limit]),
        ]


def judge(
    events: Iterable[Event],
    deaths: Mapping[int, int] | None = None,
    *,
    buried: Collection[str] = (),
    unordered: Collection[str] = (),
) -> Judgement:
    """Return the facts that a history proves.

    Args:
        events: in any order; events of one instant count in the order given.
        deaths: process id -> when it died (CLOCK_MONOTONIC nanoseconds): the end of the runs it left open.
        buried: ids of tasks in the dead queue: these are not lost.
        unordered: keys whose tasks need not start in order (ETA, retries).
    """
    ordered = sorted(events, key=lambda event: event.at)
    published = {e.task: e for e in ordered if e.kind is Kind.PUBLISHED}
    unsure = {e.task for e in ordered if e.kind is Kind.UNSURE} - set(published)
    runs = pair(ordered, deaths or {})
    finished = {run.start.task for run in runs if run.finished}
    return Judgement(
        published=len(published),
        finished=len(finished),
        runs=len(runs),
        keys=len({(event.keyspace, event.key) for event in ordered}),
        lost=tuple(e for task, e in published.items() if task not in finished and e.task_id not in buried),
        overlaps=tuple(_overlaps(runs)),
        inversions=tuple(_inversions([run for run in runs if run.start.key not in unordered], published, unsure)),
        stale=tuple(_stale(runs)),
        shared=tuple(_shared(runs)),
        duplicates=tuple(_duplicates(runs)),
    )


def takeovers(events: Iterable[Event], worker: str, since: int) -> dict[tuple[str, int], int]:
    """Return how long each slot that `worker` ran before `since` stood still: (keyspace, slot) -> nanoseconds.

    The time runs from `since` (the kill) to the first start on another worker; slots without such a start are left out.
    """
    starts = sorted((e for e in events if e.kind is Kind.START and e.slot is not None), key=lambda event: event.at)
    last = {(e.keyspace, e.slot): e.worker for e in starts if e.at < since}
    waited: dict[tuple[str, int], int] = {}
    for event in starts:
        if event.slot is None or event.at < since:
            continue
        place = (event.keyspace, event.slot)
        if last.get(place) == worker != event.worker and place not in waited:
            waited[place] = event.at - since
    return waited


def _by_key(runs: Iterable[Execution]) -> Iterable[list[Execution]]:
    groups: dict[tuple[str, str], list[Execution]] = defaultdict(list)
    for run in runs:
        groups[run.start.keyspace, run.start.key].append(run)
    return groups.values()


def _overlaps(runs: Iterable[Execution]) -> Iterable[Overlap]:
    for group in _by_key(runs):
        longest = group[0]
        for run in group[1:]:
            if run.start.at < longest.until:
                yield Overlap(longest, run)
            if run.until > longest.until:
                longest = run


Task = tuple[str, str, int]


def _inversions(
    runs: Iterable[Execution], published: Mapping[Task, Event], unsure: Collection[Task]
) -> Iterable[Inversion]:
    """Find tasks that first ran after a task that the broker must have received later.

    For one sender, that is a task with a higher number. For two senders, it is a task whose sending began after the
    other was accepted. Tasks are skipped if the sender does not know whether, and so when, the broker received them.
    """
    for group in _by_key(runs):
        first: dict[Task, Event] = {}
        for run in group:
            first.setdefault(run.start.task, run.start)
        newest: dict[int, Event] = {}
        latest: tuple[int, Event] | None = None
        for task, event in first.items():
            if task in unsure:
                continue
            told = published.get(task, event)
            before = newest.get(told.sender)
            if before is not None and event.n < before.n:
                yield Inversion(late=event, early=before)
                continue
            newest[told.sender] = event
            if latest is not None and told is not event and told.at < latest[0]:
                yield Inversion(late=event, early=latest[1])
            if told.sent and (latest is None or told.sent > latest[0]):
                latest = told.sent, event


def _duplicates(runs: Iterable[Execution]) -> Iterable[Duplicate]:
    groups: dict[tuple[str, str, int], list[Execution]] = defaultdict(list)
    for run in runs:
        groups[run.start.task].append(run)
    for task, group in groups.items():
        if len(group) > 1:
            yield Duplicate(*task, runs=len(group), finished=sum(run.finished for run in group))


def _slot(event: Event) -> Slot:
    """Return the scope of the event's epochs: its slot, or its key if it has no slot."""
    return event.slot if event.slot is not None else KeyPlace(event.key)


def _stale(runs: Iterable[Execution]) -> Iterable[StaleStart]:
    newest: dict[tuple[str, Slot], int] = {}
    for start in (run.start for run in runs):
        if start.epoch is None:
            continue
        place = start.keyspace, _slot(start)
        seen = newest.get(place, start.epoch)
        if start.epoch < seen:
            yield StaleStart(start, seen)
        newest[place] = max(seen, start.epoch)


def _shared(runs: Iterable[Execution]) -> Iterable[SharedEpoch]:
    workers: dict[tuple[str, Slot, int], set[str]] = defaultdict(set)
    for start in (run.start for run in runs):
        if start.epoch is not None:
            workers[start.keyspace, _slot(start), start.epoch].add(start.worker)
    for (keyspace, slot, epoch), names in workers.items():
        if len(names) > 1:
            yield SharedEpoch(keyspace, slot, epoch, tuple(sorted(names)))


def _task(event: Event) -> str:
    return f"{event.key} #{event.n} ({event.task_id})"


def _place(event: Event) -> str:
    return f"{_task(event)} on {event.worker or '?'} pid {event.pid} epoch {event.epoch} at {event.at / 1e9:.3f}"
