"""The memory placement store, which shows each claim to the witness and each change of placement to the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.placement import Claims, Pinned, Said, Version, Wish
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.placed import Placed
    from simulator.world import World


class WitnessedPlacementStore(MemoryPlacementStore):
    """A worker's client of it."""

    def __init__(self, world: World, placed: Placed, worker: str) -> None:
        super().__init__(world.server, KEYSPACE)
        self._world, self._placed, self._worker = world, placed, worker

    @property
    def subscribed(self) -> bool:
        """Whether it gets signals."""
        return self._subscription is not None

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """Claim keys."""
        claims = super().claim(incarnation, call, known, wishes, heartbeats)
        for key, answer in claims.answers.items():
            if answer.said is Said.GRANTED:
                self._world.note(incarnation, "has claimed key %s, token %s", key, answer.token)
                self._placed.witness.grants(key, answer.token, incarnation, self._worker)
        return claims

    def pin(self, worker: str, key: str, *, take: bool) -> Pinned:
        """Pin a key."""
        pinned = super().pin(worker, key, take=take)
        self._placed.look()
        return pinned

    def unpin(self, worker: str, key: str, pinned: Pinned | None = None) -> bool:
        """Remove a pin."""
        unpinned = super().unpin(worker, key, pinned)
        self._placed.look()
        return unpinned
