"""The flows of a placer, whose requests go to the placement store; and the courier as a placer sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keys import SlotId
from celery_sticky.stores.flow import Aside, Pause, Watch
from celery_sticky.stores.placement import PlacementStore

Answer = TypeVar("Answer")

Request = Watch | Pause | Aside | Callable[[PlacementStore], object]
"""A request; a callable is one of the verbs of the placement store. Each may raise `StoreUnavailable`."""
Flow = Generator[Request, Any, Answer]


class Courier(Protocol):
    """The courier, as a placer sees it. No method waits."""

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a worker queue; reports `Opened` or `OpenRefused`."""

    def stop(self, slot: SlotId) -> None:
        """Start no more messages of a worker queue; reports `Drained` when nothing of it is left here."""

    def close(self, slot: SlotId) -> None:
        """Close a worker queue that another worker already has."""

    def trusts(self, keyspace: str) -> bool:
        """Return whether the lease in this keyspace is trusted now."""

    def consult(self, ask: Callable[[DeliveryState], Answer]) -> Answer:
        """Return the result of `ask` for the delivery state."""

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """Apply decisions on keys to the delivery state; `tell` also gets the time in seconds since the Unix epoch."""
