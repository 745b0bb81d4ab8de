"""Additional invariants of placed keyspaces: of claims and pins, and of the order that is promised there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_sticky.delivery.key_claims import REVIEW
from celery_sticky.slots import WorkerQueue
from simulator.invariants import Invariant, Progress, Violation, Witness
from simulator.placement_lookup import PlacementLookup

if TYPE_CHECKING:
    from simulator.pool import SimulatedRun
    from simulator.process import Process


PROMPT = 0.5
"""Seconds in which a worker looks up the placement of a key and acts on it."""


class PlacedWitness(Witness):
    """Checks every step of a world with a placed keyspace."""

    def __init__(self, slots: int, lookup: PlacementLookup, *, calm: bool, tends: bool) -> None:
        """`tends`: keys without a place are claimed by the owner of their slot, who removes jobs that are to stop."""
        super().__init__(slots)
        self._lookup, self._calm, self._tends = lookup, calm, tends
        self._granted: dict[str, tuple[int, str]] = {}
        self._begun: dict[tuple[int, int], list[_Begun]] = defaultdict(list)
        """By key and priority."""

    def grants(self, key: str, token: int, incarnation: str, worker: str) -> None:
        """Check a claim that the store has granted."""
        before, holder = self._granted.get(key, (0, ""))
        if token <= before:
            broken = Invariant.CLAIM_BACK if token < before or holder == incarnation else Invariant.CLAIM_SHARED
            raise Violation(broken, f"key {key}: token {token} for {incarnation} after {before} for {holder}")
        self._granted[key] = token, incarnation
        place = self._lookup.of(key)
        match place:
            case WorkerQueue(owner) if owner != worker:
                where = owner
            case None if not self._tends:
                where = "nowhere"
            case _:
                return
        raise Violation(Invariant.MISDIRECTED, f"key {key} belongs to {where}: {incarnation} has claimed it")

    def claims(self, process: Process, processes: Collection[Process]) -> None:
        """Check that no other worker holds what this worker holds, after a change of its claims or its lease."""
        if not process.trusts or not (mine := process.claimed):
            return
        for other in processes:
            if other is not process and other.alive and other.trusts and (both := mine & other.claimed):
                raise Violation(Invariant.TWO_CLAIMS, f"keys {sorted(both)} of {process.origin} and {other.origin}")

    def begins(self, run: SimulatedRun) -> None:
        """Check a run that begins now."""
        if not run.epoch:
            raise Violation(Invariant.UNCLAIMED_START, str(run))
        if self._calm:
            self._check_place(run)
        super().begins(run)

    def _check_place(self, run: SimulatedRun) -> None:
        key = str(run.key)
        place, since = self._lookup.of(key), self._lookup.since(key)
        here = place == WorkerQueue(run.process.name) or place in run.process.machine.slots
        if not here and run.process.world.now > since + REVIEW + PROMPT:
            raise Violation(Invariant.RUN_ELSEWHERE, f"{run}, which belongs to {place} since {since:.3f}")

    def _may_be_buried(self, progress: Progress) -> bool:
        nowhere = self._lookup.was_nowhere(progress.key, progress.known_at)
        return nowhere or super()._may_be_buried(progress)

    def _check_order(self, run: SimulatedRun, progress: Progress) -> None:
        if not progress.place:
            return
        began_before = self._begun[run.key, run.priority]
        for other in began_before:
            # The later task may have been sent earlier: it was deferred, perhaps in the key's former queue.
            since = min(progress.known_at, other.known_at)
            if other.place > progress.place and not self._lookup.changed(progress.key, since, other.at):
                broken = Invariant.FIRST_RUN_ORDER if progress.runs == 1 else Invariant.RUN_AFTER_LATER
                raise Violation(broken, f"{run} after {other.what}, and the key has not moved")
        began_before.append(_Begun(progress.place, progress.known_at, run.process.world.now, str(run)))


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that has begun."""

    place: int
    known_at: float
    at: float
    what: str
