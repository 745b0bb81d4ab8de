"""Checker for placed keys: order as far as it is promised, and the workers in which they ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import EVERYBODY, Done
from celery_sticky.delivery.key_claims import REVIEW
from celery_sticky.placement.lookup import FRESH
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.judge import Inversion

STALE = int(FRESH * 1_000_000_000)
"""Maximum age of a sender's view, in nanoseconds."""
ASKED = int(3 * REVIEW * 1_000_000_000)
"""Nanoseconds within which a worker re-checks whether a key with waiting tasks still belongs to it."""
Task = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class PlacementFindings:
    """The findings about placed keys."""

    refused: int
    """Number of refused sends; their tasks were not accepted."""
    vain: tuple[Event, ...]
    """Sends that were refused although the key belonged to a worker and no fault was hitting a server."""
    ran: tuple[Event, ...]
    """Starts of tasks whose send was refused."""
    astray: tuple[Event, ...]
    """Starts in a worker to which the key had not belonged for some time."""
    moved: tuple[Inversion, ...]
    """Tasks out of order because their messages moved to another queue. Order is not promised then."""
    nowhere: int
    """Number of tasks that were buried because no worker had pinned their key."""
    untold: tuple[Event, ...]
    """Lost pins of which the worker was not told."""
    changes: int
    """Number of changes of the members or of a key's pin."""

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not any((self.vain, self.ran, self.astray, self.untold))

    def findings(self) -> dict[str, int]:
        """Return the findings as they appear in the JSON."""
        return {
            "changes": self.changes,
            "refused": self.refused,
            "refused_in_vain": len(self.vain),
            "refused_and_run": len(self.ran),
            "astray": len(self.astray),
            "out_of_order_by_moves": len(self.moved),
            "buried_unpinned": self.nowhere,
            "pins_lost_untold": len(self.untold),
        }

    def accusations(self, limit: int) -> list[str]:
        """Return the first `limit` cases of each broken promise, one per line."""
        return [
            *(f"send refused without reason: {one.key} #{one.n} at {one.at / 1e9:.3f}" for one in self.vain[:limit]),
            *(f"send refused, but the task ran: {_start(start)}" for start in self.ran[:limit]),
            *(f"ran in the wrong worker: {_start(start)}" for start in self.astray[:limit]),
            *(f"worker not told of a lost pin: {pin.key} on {short(pin.worker)}" for pin in self.untold[:limit]),
        ]


@dataclass(frozen=True, slots=True)
class Sent:
    """The accepted tasks of a run, and the placement of their keys over time."""

    moves: Moves
    published: Mapping[Task, Event]

    @classmethod
    def of(cls, outcome: VerifyRun) -> Sent | None:
        """Return the tasks of a run, or None if it does not use a placed keyspace."""
        if outcome.moves is None:
            return None
        published = {event.task: event for event in outcome.events if event.kind is Kind.PUBLISHED}
        return cls(outcome.moves, published)

    def moved(self, inversion: Inversion) -> bool:
        """Return True if messages that moved to another queue explain this inversion.

        Messages move in order. So a single change explains the inversion only if the early task was sent to another
        queue because its sender already knew of that change.
        """
        late, early = self.published.get(inversion.late.task), self.published.get(inversion.early.task)
        if late is None or early is None:
            return True  # a task that was not accepted: its run is reported separately
        changes = self.moves.of(late.key, late.sent - STALE, inversion.late.at)
        return len(changes) > 1 or any(early.at >= since for since, _ in changes)

    def in_vain(self, refused: Event, faults: Iterable[Done]) -> bool:
        """Return True if a send was refused although the key belonged to a worker and no fault hit a server."""
        since, until = refused.sent - STALE, refused.at
        hurt = any(EVERYBODY in one.hit and one.since <= until and since <= one.until for one in faults)
        return not hurt and None not in self.moves.workers(refused.key, since, until)

    def unpinned(self, event: Event) -> bool:
        """Return True if the task's key may have had no place at some time since just before the send."""
        return None in self.moves.workers(event.key, event.sent - STALE, 1 << 63)

    def astray(self, start: Event, faults: Iterable[Done]) -> bool:
        """Return True if the key had not belonged to this worker for some time, and no fault excuses the start."""
        since = start.at - ASKED
        if start.worker in self.moves.workers(start.key, since, start.at):
            return False
        return not any(one.excuses(short(start.worker), since, start.at) for one in faults)


def reach_of_placed(
    outcome: VerifyRun, sent: Sent, inversions: Sequence[Inversion], nowhere: Collection[str]
) -> PlacementFindings:
    """Check the outcome's placed keys and return the findings.

    `inversions` are all those in the history, whether order was promised or not. `nowhere` has the ids of the tasks
    that were buried because their keys had no place.
    """
    refused = [event for event in outcome.events if event.kind is Kind.REFUSED]
    ids = {event.task_id for event in refused}
    starts = [event for event in outcome.events if event.kind is Kind.START]
    faults = [*outcome.timeline.done, *outcome.timeline.restarts]
    return PlacementFindings(
        refused=len(refused),
        vain=tuple(event for event in refused if sent.in_vain(event, faults)),
        ran=tuple(start for start in starts if start.task_id in ids),
        astray=tuple(start for start in starts if sent.astray(start, faults)),
        moved=tuple(inversion for inversion in inversions if sent.moved(inversion)),
        nowhere=len(nowhere),
        untold=tuple(outcome.untold),
        changes=len(list(_changes(sent.moves))),
    )


def _changes(moves: Moves) -> Iterable[object]:
    yield from moves.of("", 0, 1 << 63)
    for changes in moves.pins.values():
        yield from changes[1:]


def _start(event: Event) -> str:
    where = f"on {short(event.worker)} pid {event.pid} epoch {event.epoch} at {event.at / 1e9:.3f}"
    return f"{event.key} #{event.n} ({event.task_id}) {where}"
