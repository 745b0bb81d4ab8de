"""The real courier on a stepped line. The world learns of slots that are closed, and of decisions about keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import CourierConfig
from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keys import SlotId
from celery_sticky.keyspace import DeadBounds
from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.memory_held import HELD
from simulator.line import SteppedLine
from simulator.terms import (
    BROKER_GRACE,
    DEAD_LIMIT,
    EPOCH,
    KEYSPACE,
    LEDGER_RETENTION,
    MAX_ATTEMPTS,
    MAX_WAITING,
    MAX_WAITING_BYTES,
)

if TYPE_CHECKING:
    from simulator.process import Process


class WatchedCourier(Courier):
    """The courier of a process."""

    def __init__(self, process: Process) -> None:
        self._process, world = process, process.world
        self.line = SteppedLine(process, self)
        super().__init__(
            self.line,
            CourierConfig(
                keyspaces=(KEYSPACE,),
                worker=process.name,
                max_waiting=MAX_WAITING,
                max_waiting_bytes=MAX_WAITING_BYTES,
                max_attempts=MAX_ATTEMPTS,
                broker_grace=BROKER_GRACE,
                placed=() if world.scenario.placement is None else (KEYSPACE,),
                guarantees=HELD if world.scenario.held else FULL,
                claim_ahead=world.scenario.claim_ahead,
                ledgers=() if world.scenario.claim_ahead is None else (KEYSPACE,),
                ledger_retention=LEDGER_RETENTION,
                dead_bounds={KEYSPACE: DeadBounds(DEAD_LIMIT)},
            ),
            process.report,
            lambda _: process.trusts,
            lambda _: self._wake_placer(),
            clock=lambda: world.now + EPOCH,
            monotonic=lambda: process.clock,
        )
        self.start(process.pool)

    @property
    def gave_up(self) -> bool:
        """Whether the broker was ever down for longer than its grace; then slots go with unconfirmed dispositions."""
        return self.line.gave_up

    def close(self, slot: SlotId) -> None:
        """Close a slot, which the broker need not have heard of all that ended in it."""
        super().close(slot)
        self.line.closes(slot)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """Apply decisions about keys, which change what the process has claimed."""
        super().decide(tell)
        self._process.learns_of_claims()

    def _wake_placer(self) -> None:
        if self._process.placer is not None:
            self._process.placer.wake()
