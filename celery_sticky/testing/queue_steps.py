"""The building blocks of the tests of `queue_contract`: a broker, tenures, dispositions, a fetch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from celery_sticky.queues.base import (
    Delivery,
    Disposition,
    Fetched,
    Opening,
    Outcome,
    RunClaim,
    SlotQueues,
    Tag,
    Tenure,
    Want,
)
from celery_sticky.slots import Slot

NOW = 1_000_000.0
LONG = 20.0
"""Seconds that a test waits in full only if it fails."""
SOON = 1.0
"""Seconds within which a driver learns of a message by its ordinary signal, not by an occasional check."""
ODD = b'\x00\xff:{"body": "a:b"}\r\n'


class Broker(Protocol):
    """One empty broker."""

    def driver(self) -> SlotQueues:
        """Return a new driver with a connection of its own."""

    def publish(self, keyspace: str, slot: Slot, body: bytes, priority: int = 0) -> None:
        """Add a message to a slot queue as a sender does."""


Connect = Callable[[], SlotQueues]
Publish = Callable[..., None]
End = Callable[[Delivery], Disposition]


def tenure(
    slot: Slot = 7, epoch: int = 5, incarnation: str = "ann", count: int = 3, keyspace: str = "default"
) -> Tenure:
    """Return a tenure of the slot that the tests use most."""
    return Tenure(keyspace, slot, epoch, incarnation, count)


FIRST = tenure()
AGAIN = tenure(count=4)
NEXT = tenure(epoch=6, incarnation="bob", count=1)
HERE = ("default", 7)


def ack(delivery: Delivery, under: Tenure | None = None) -> Disposition:
    """Return the disposition of a delivery that is done."""
    return Disposition(Outcome.ACK, under or delivery.tenure, delivery.tag)


def defer(delivery: Delivery, due: float, body: bytes | None = None) -> Disposition:
    """Return the disposition of a delivery that must wait."""
    return Disposition(Outcome.DEFER, delivery.tenure, delivery.tag, due=due, body=body)


def move(delivery: Delivery, to: Slot, body: bytes | None = None) -> Disposition:
    """Return the disposition of a delivery that goes to another queue."""
    return Disposition(Outcome.MOVE, delivery.tenure, delivery.tag, body=body, to=to)


def bury(delivery: Delivery, info: str = "{}") -> Disposition:
    """Return the disposition of a delivery that is dead."""
    return Disposition(Outcome.BURY, delivery.tenure, delivery.tag, info=info)


def mark(delivery: Delivery, starts: int = 1) -> Disposition:
    """Return the request to count the start of a delivery as its start number `starts`."""
    return Disposition(Outcome.COUNT_START, delivery.tenure, delivery.tag, starts=starts)


def unmark(delivery: Delivery, starts: int = 1) -> Disposition:
    """Return the request to take back the counted start of a delivery that did not start."""
    return Disposition(Outcome.UNCOUNT_START, delivery.tenure, delivery.tag, starts=starts)


def claim(delivery: Delivery, run: str = "id/0", *, once: bool = True) -> Disposition:
    """Return the request to claim the run of a delivery."""
    return Disposition(Outcome.CLAIM, delivery.tenure, delivery.tag, claim=RunClaim(run, once))


def unclaim(delivery: Delivery, run: str = "id/0") -> Disposition:
    """Return the request to give back the claim of a run that did not start."""
    return Disposition(Outcome.UNCLAIM, delivery.tenure, delivery.tag, claim=RunClaim(run, once=True))


def finishing(disposition: Disposition, run: str = "id/0", *, once: bool = True) -> Disposition:
    """Return a disposition that ends a run."""
    return replace(disposition, claim=RunClaim(run, once))


def unknown(delivery: Delivery) -> Tag:
    """Return a tag that belongs to no delivery."""
    return replace(delivery.tag, number=delivery.tag.number + 1)


def open_slot(queues: SlotQueues, under: Tenure, keep: Collection[Tag] = ()) -> Collection[Tag]:
    """Open one slot and return which of `keep` are in flight; raise the error that is its answer otherwise."""
    (answer,) = queues.open([Opening(under, tuple(keep))])
    if isinstance(answer, Exception):
        raise answer
    return answer


def take(queues: SlotQueues, under: Tenure, *dispositions: Disposition, limit: int = 100, now: float = NOW) -> Fetched:
    """Fetch for one slot, and collect the answers to the dispositions."""
    return _answered(queues, queues.fetch([Want(under, limit)], dispositions, now), len(dispositions))


def take_all(queues: SlotQueues, under: Tenure, now: float = NOW) -> Fetched:
    """Fetch for one slot until it is drained."""
    whole = take(queues, under, limit=5000, now=now)
    while not whole.drained:
        more = take(queues, under, limit=5000, now=now)
        assert more.deliveries, "a slot that is not drained brings something"
        whole.deliveries += more.deliveries
        whole.drained, whole.due = more.drained, more.due
    return whole


def settle(queues: SlotQueues, *dispositions: Disposition) -> Fetched:
    """Settle, and fetch nothing."""
    return _answered(queues, queues.fetch([], dispositions, NOW), len(dispositions))


def _answered(queues: SlotQueues, fetched: Fetched, count: int) -> Fetched:
    """Collect the answers to this many dispositions: a broker may confirm later."""
    deadline = time.monotonic() + LONG
    while len(fetched.confirmed) + len(fetched.refused) + len(fetched.failed) < count:
        assert time.monotonic() < deadline, "every disposition has an answer"
        later = queues.fetch([], [], NOW)
        fetched.confirmed += later.confirmed
        fetched.refused += later.refused
        fetched.failed += later.failed
        fetched.counted_starts |= later.counted_starts
        fetched.claims |= later.claims
    return fetched


def holds(queues: SlotQueues, slot: Slot, *, waiting: int, deferred: int, in_flight: int) -> bool:
    """Return whether a slot has this many messages, as far as the broker can say."""
    depth = queues.depths([("default", slot)])["default", slot]
    known = depth.deferred in (None, deferred) and depth.in_flight in (None, in_flight)
    return depth.waiting == waiting and known


def bodies(fetched: Fetched) -> list[bytes]:
    """Return the bodies of the fetched messages."""
    return [delivery.body for delivery in fetched.deliveries]


def attempts(fetched: Fetched) -> dict[bytes, int | None]:
    """Return the counted starts of each fetched message."""
    return {delivery.body: delivery.attempts for delivery in fetched.deliveries}


class QueueFixtures:
    """The fixtures of the contract's tests."""

    @pytest.fixture
    def broker(self) -> Any:
        """Return one empty broker; override this."""
        raise NotImplementedError

    @pytest.fixture
    def connect(self, broker: Broker) -> Iterator[Connect]:
        """Create drivers that are closed at the end."""
        made: list[SlotQueues] = []

        def connect() -> SlotQueues:
            made.append(broker.driver())
            return made[-1]

        yield connect
        for queues in made:
            queues.close()
            queues.close()  # may be called twice

    @pytest.fixture
    def queues(self, connect: Connect) -> SlotQueues:
        """Return a driver with slot 7 opened for `FIRST`."""
        queues = connect()
        open_slot(queues, FIRST)
        return queues

    @pytest.fixture
    def publish(self, broker: Broker) -> Publish:
        """Return a function that publishes bodies to slot 7."""

        def publish(*some: bytes, priority: int = 0) -> None:
            for body in some:
                broker.publish("default", 7, body, priority)

        return publish
