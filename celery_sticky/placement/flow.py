"""With whom the parts of a placer talk: with the directory, one request at a time, and with the courier.

A talk yields its requests. Whoever holds it makes them one after the other and brings the answers, or the error that
came instead: in a thread, or step by step. What a request names is as it was when it was yielded, however late it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, TypeVarTuple

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keys import SlotId
from celery_sticky.stores.placement import PlacementStore

Answer = TypeVar("Answer")
Given = TypeVarTuple("Given")

Request = Callable[[PlacementStore], object]
Flow = Generator[Request, Any, Answer]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the directory: one of its verbs."""

    verb: str
    given: tuple[Any, ...]

    def __call__(self, placement_store: PlacementStore) -> object:
        """Make it."""
        return getattr(placement_store, self.verb)(*self.given)

    def __str__(self) -> str:
        return self.verb


def ask(verb: Callable[[Any, *Given], Answer], *given: *Given) -> Generator[Request, Any, Answer]:
    """Ask the directory for one thing; `verb` is one of `PlacementStore`."""
    answer: Answer = yield Asked(verb.__name__, given)
    return answer


def hold(flow: Generator[Request, Any, Answer], placement_store: PlacementStore) -> Answer:
    """Carry a talk on to its end. What a request raises is raised in the talk, which may go on all the same."""
    try:
        request = next(flow)
        while True:
            try:
                answer = request(placement_store)
            except Exception as error:
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as end:
        result: Answer = end.value
        return result


class Courier(Protocol):
    """The courier, as a placer sees it. None of it waits."""

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a worker queue; reports `Opened` or `OpenRefused`."""

    def stop(self, slot: SlotId) -> None:
        """Start nothing more of a worker queue; reports `Drained` when nothing of it is left here."""

    def close(self, slot: SlotId) -> None:
        """The worker queue is somebody else's already."""

    def trusts(self, keyspace: str) -> bool:
        """Whether the lease in this keyspace is trusted now."""

    def consult(self, ask: Callable[[DeliveryState], Answer]) -> Answer:
        """Return what the desk answers."""

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """Tell the desk, and what time it is (seconds since the epoch), what has been decided of keys."""
