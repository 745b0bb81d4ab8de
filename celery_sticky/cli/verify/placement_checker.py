"""What the history of a run proves of its placed keys: order as far as it is promised, and where they ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.run import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import EVERYBODY, Done
from celery_sticky.delivery.key_claims import REVIEW
from celery_sticky.placement.lookup import FRESH
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.judge import Inversion

STALE = int(FRESH * 1_000_000_000)
"""Nanoseconds by which what a sender knows may be old."""
ASKED = int(3 * REVIEW * 1_000_000_000)
"""Nanoseconds after which a worker has asked whether a key of which tasks wait there still belongs to it."""
Task = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class PlacementFindings:
    """What was found."""

    refused: int
    """Sendings that were refused: nobody accepted these tasks."""
    vain: tuple[Event, ...]
    """Those that were refused although the key belonged to a worker, and no server was hurt."""
    ran: tuple[Event, ...]
    """Starts of tasks whose sending was refused."""
    astray: tuple[Event, ...]
    """Starts in a worker to which the key had not belonged for some time."""
    moved: tuple[Inversion, ...]
    """Out of order because their messages have changed the queue: that is not promised."""
    nowhere: int
    """Tasks that are dead because nobody had pinned their key."""
    untold: tuple[Event, ...]
    """Pins that a worker has lost and was not told of."""
    changes: int
    """How often members, or the pin of a key, have changed."""

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not any((self.vain, self.ran, self.astray, self.untold))

    def findings(self) -> dict[str, int]:
        """Return it as it stands in the JSON."""
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
        """Return the first `limit` of each broken promise, one a line."""
        return [
            *(f"sending was refused in vain: {one.key} #{one.n} at {one.at / 1e9:.3f}" for one in self.vain[:limit]),
            *(f"sending was refused, and it ran: {_start(start)}" for start in self.ran[:limit]),
            *(f"its key belonged elsewhere: {_start(start)}" for start in self.astray[:limit]),
            *(f"a lost pin it was not told of: {pin.key} on {short(pin.worker)}" for pin in self.untold[:limit]),
        ]


@dataclass(frozen=True, slots=True)
class Sent:
    """The tasks of a run as their senders know them."""

    moves: Moves
    published: Mapping[Task, Event]

    @classmethod
    def of(cls, outcome: VerifyRun) -> Sent | None:
        """Return them; None where the keyspace directs no keys."""
        if outcome.moves is None:
            return None
        published = {event.task: event for event in outcome.events if event.kind is Kind.PUBLISHED}
        return cls(outcome.moves, published)

    def moved(self, inversion: Inversion) -> bool:
        """Whether messages that changed their queue explain why these are out of order.

        They move in their order. So if one change alone is to explain it, the early one was sent to another queue, in
        the knowledge of that change.
        """
        late, early = self.published.get(inversion.late.task), self.published.get(inversion.early.task)
        if late is None or early is None:
            return True  # nobody accepted it: that it ran at all is told
        changes = self.moves.of(late.key, late.sent - STALE, inversion.late.at)
        return len(changes) > 1 or any(early.at >= since for since, _ in changes)

    def in_vain(self, refused: Event, faults: Iterable[Done]) -> bool:
        """Whether the key belonged to a worker when its sending was refused, and no server was hurt."""
        since, until = refused.sent - STALE, refused.at
        hurt = any(EVERYBODY in one.hit and one.since <= until and since <= one.until for one in faults)
        return not hurt and None not in self.moves.workers(refused.key, since, until)

    def unpinned(self, event: Event) -> bool:
        """Whether the key of this task may have belonged nowhere since just before it was sent."""
        return None in self.moves.workers(event.key, event.sent - STALE, 1 << 63)

    def astray(self, start: Event, faults: Iterable[Done]) -> bool:
        """Whether the start is in a worker that no fault had met, and to which the key had not belonged for long."""
        since = start.at - ASKED
        if start.worker in self.moves.workers(start.key, since, start.at):
            return False
        return not any(one.excuses(short(start.worker), since, start.at) for one in faults)


def reach_of_placed(
    outcome: VerifyRun, sent: Sent, inversions: Sequence[Inversion], nowhere: Collection[str]
) -> PlacementFindings:
    """Return what the outcome proves of placed keys.

    `inversions` are those of the history, whether order was promised or not; `nowhere` the ids of the tasks that are
    dead because their keys belonged nowhere.
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
