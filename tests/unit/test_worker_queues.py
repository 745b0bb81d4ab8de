"""Which worker queues a worker reads, one request to the directory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.errors import BrokerUnavailable, StoreUnavailable
from celery_sticky.flows import run_flow
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.placement.worker_queues import WorkerQueues
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer

KS = "ks"


class Courier:
    """Has nothing to deliver."""

    def __init__(self) -> None:
        self.delivery_state = DeliveryState(
            lambda *_: None, worker="a", concurrency=lambda: 4, max_waiting=100, max_attempts=3
        )

    def trusts(self, _: str) -> bool:
        return True

    def consult(self, ask: Callable[[DeliveryState], Any]) -> Any:
        return ask(self.delivery_state)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        tell(self.delivery_state, 0.0)

    def open(self, *_: Any) -> None: ...

    def stop(self, *_: Any) -> None: ...

    def close(self, *_: Any) -> None: ...


def leaving() -> View:
    """Return a view in which `a` leaves and is everybody's successor, for it still owns the slots."""
    view = changes.fresh(slots=4, hash="h", generation=1, version=1, store_id="s")
    return changes.leave(changes.join(view, Member("a", "a-1", attributes={HAS_WORKER_QUEUE: "1"})), "a")


def test_who_leaves_with_its_queue_closed_knows_it_also_if_the_store_then_does_not_answer() -> None:
    """Guards: it would wait for ever to be told so again, and never depart."""
    queues = WorkerQueues(KS, "a", lambda: MemoryQueues(MemoryBroker()), Courier())
    queues.members_changed()
    flow = queues.look_after(leaving(), "a-1", 0.0, leaving=True)
    assert str(next(flow)) == "enlisted"
    flow.send({"a": "a-1", "gone": "gone-1"})  # now it looks after the queue of `gone`
    with pytest.raises(StoreUnavailable):
        flow.throw(StoreUnavailable("no answer"))
    flow = queues.look_after(leaving(), "a-1", 1.0, leaving=True)
    assert str(next(flow)) == "sweep"
    with pytest.raises(StopIteration) as ended:
        flow.send("0")
    assert ended.value.value is True


def test_whose_successor_we_are_is_asked_again_at_once_if_the_store_does_not_answer() -> None:
    """Guards: what stands in the queue of a worker that is gone would wait for the next look."""
    queues = WorkerQueues(KS, "a", lambda: MemoryQueues(MemoryBroker()), Courier())
    for now in (100.0, 100.1):
        flow = queues.look_after(leaving(), "a-1", now, leaving=False)
        assert str(next(flow)) == "enlisted"
        with pytest.raises(StoreUnavailable):
            flow.throw(StoreUnavailable("no answer"))


def test_who_cannot_look_into_the_queues_of_workers_that_are_gone_goes_on_with_the_rest() -> None:
    def connect() -> MemoryQueues:
        raise BrokerUnavailable("away")

    server = MemoryServer()
    placement_store = MemoryPlacementStore(server, KS)
    placement_store.enlist("gone", "gone-1")
    queues = WorkerQueues(KS, "a", connect, Courier())
    flow = queues.look_after(leaving(), "a-1", 0.0, leaving=True)
    assert run_flow(flow, lambda request: cast(Any, request)(placement_store)) is True
