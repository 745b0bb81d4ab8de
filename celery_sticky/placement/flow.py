"""The flows of a placer: how its parts send requests to the placement store; and the courier as a placer sees it.

The arguments of a request are fixed when it is yielded, however late it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, TypeVarTuple

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keys import SlotId
from celery_sticky.stores.flow import Aside, Pause, Watch
from celery_sticky.stores.placement import PlacementStore

Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")

Request = Watch | Pause | Aside | Callable[[PlacementStore], object]
"""A request; a callable is one of the placement store's verbs. Each may raise `StoreUnavailable`."""
Flow = Generator[Request, Any, Answer]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the placement store: one of its methods with arguments."""

    verb: str
    given: tuple[Any, ...]

    def __call__(self, placement_store: PlacementStore) -> object:
        """Make the request."""
        return getattr(placement_store, self.verb)(*self.given)

    def __str__(self) -> str:
        return self.verb


def ask(verb: Callable[[Any, *Given], Answer], *given: *Given) -> Generator[Request, Any, Answer]:
    """Make one request to the placement store; `verb` is a method of `PlacementStore`."""
    answer: Answer = yield Asked(verb.__name__, given)
    return answer


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
