"""The worker queues that this worker reads: its own, and those of departed workers whose successor it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.keyspace import successor
from celery_sticky.ownership.view import View
from celery_sticky.placement.flow import Courier, Flow
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.inspection import Depth
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.stores.flow import ask
from celery_sticky.stores.placement import START, PlacementStore

logger = logging.getLogger("celery_sticky.placer")

LOOK_EVERY = 5.0
"""Seconds between checks for queues of departed workers."""
COUNTED_EVERY = 60.0
"""Seconds between checks whether those queues are empty."""
KEPT = 3600.0
"""Seconds to keep reading the empty queue of a departed worker: a slow sender may still send to it."""


@dataclass(slots=True)
class _Queue:
    """A worker queue that this worker should read."""

    epoch: int
    empty_since: float | None = None


class WorkerQueues:
    """The worker queues open here. Used by one thread, except `close_all`. `now` is in seconds on one clock."""

    def __init__(self, keyspace: str, worker: str, connect: Callable[[], SlotQueues], courier: Courier) -> None:
        self._name, self._worker, self._mine = keyspace, worker, WorkerQueue(worker)
        self._connect, self._courier = connect, courier
        self._queues: dict[WorkerQueue, _Queue] = {}
        self._fences: dict[WorkerQueue, int] = {}
        self._enlisted: dict[str, str] = {}
        self._look_at = self._count_at = 0.0
        self._sweep_from: str | None = None
        self._stopping = self._shut = False

    @property
    def outbid(self) -> bool:
        """True if opening a queue was refused because another worker has fenced it."""
        return bool(self._fences)

    @property
    def shut(self) -> bool:
        """True if a queue that this worker should read is not open here."""
        return self.outbid or self._shut

    def close_all(self) -> None:
        """Close all queues when the membership ends. Any thread may call this; `forget_all` follows in ours."""
        for name in list(self._queues):
            self._courier.close((self._name, name))

    def forget_all(self) -> None:
        """Forget all queues when a membership ends or begins."""
        self.close_all()
        self._queues.clear()
        self._fences.clear()
        self._stopping = self._shut = False

    def members_changed(self) -> None:
        """Re-check successors and departed workers after the members changed."""
        self._look_at, self._sweep_from = 0.0, START

    def refused(self, name: WorkerQueue, fence: int) -> None:
        """Note that the broker refused to open a queue because it is fenced at epoch `fence`."""
        self._fences[name] = max(fence, self._fences.get(name, 0))
        if self._queues.pop(name, None) is not None:
            logger.info("keyspace %s: queue %s is fenced at epoch %d", self._name, name, fence)

    def drained(self, name: WorkerQueue) -> bool:
        """Take in that a stopped queue is drained; True if it is our own, which is then closed for good."""
        if name != self._mine or not self._stopping:
            return False
        self._queues.pop(name, None)
        return True

    def look_after(self, view: View, incarnation: str, now: float, *, leaving: bool) -> Flow[bool]:
        """Open and close queues as needed. True if our own queue is closed for good without waiting for a drain."""
        if now >= self._look_at:
            self._courier.decide(lambda delivery_state, _: delivery_state.slots.look_into((self._name, self._mine)))
            self._enlisted = dict((yield from ask(PlacementStore.enlisted)))
            self._look_at = now + LOOK_EVERY  # set after the answer: a failed request is repeated at once
        heritage = {WorkerQueue(name) for name in self._enlisted if successor(view, name) == self._worker}
        shut = sorted((heritage if leaving else heritage | {self._mine}) - self._queues.keys())
        # Without trust, others may already read these queues by another document, whose versions may be lower.
        self._shut = bool(shut) and not self._courier.trusts(self._name)
        for name in () if self._shut else shut:
            self._open(name, view, incarnation)
        for name in sorted(self._queues.keys() - heritage - {self._mine}):
            del self._queues[name]
            self._courier.close((self._name, name))
        self._fences = {name: fence for name, fence in self._fences.items() if name not in self._queues}
        for name in self._fences.keys() - heritage - {self._mine}:
            del self._fences[name]
        if heritage:
            yield from self._tidy(now)
        return leaving and self._stop_mine()  # last, because requests to the store may fail before this

    def _open(self, name: WorkerQueue, view: View, incarnation: str) -> None:
        if incarnation:
            epoch = max(view.version, self._fences.get(name, 0) + 1)
            self._queues[name] = _Queue(epoch)
            if name != self._mine:
                logger.info("keyspace %s: worker of queue %s is gone; this worker drains the queue", self._name, name)
            self._courier.open((self._name, name), epoch, incarnation)

    def _stop_mine(self) -> bool:
        """When leaving: wait until nothing of our queue runs here, passing messages on, then close it.

        Return True once it is closed.
        """
        queue = (self._name, self._mine)
        if self._stopping or self._courier.consult(lambda delivery_state: delivery_state.gate.busy(queue)):
            return False
        self._stopping = True
        if self._mine not in self._queues:
            return True
        self._courier.stop(queue)
        return False

    def _tidy(self, now: float) -> Flow[None]:
        if now >= self._count_at:
            self._count_at = now + COUNTED_EVERY
            with suppress(BrokerUnavailable):
                yield from self._forget_empty(now)
        if self._sweep_from is not None:
            on = yield from ask(PlacementStore.sweep, self._sweep_from)
            self._sweep_from = None if on == START else on

    def _forget_empty(self, now: float) -> Flow[None]:
        """Forget workers whose queue has been empty for `KEPT` seconds."""
        names = [name for name in self._queues if name != self._mine]
        depths: Mapping[Slot, Depth] = yield lambda _: self._depths(names)
        for name in names:
            depth, queue = depths[name], self._queues[name]
            if not depth.is_empty:
                queue.empty_since = None
            elif queue.empty_since is None:
                queue.empty_since = now
            elif now >= queue.empty_since + KEPT:
                yield from ask(PlacementStore.strike, name.worker, self._enlisted.pop(name.worker, ""))

    def _depths(self, names: Collection[WorkerQueue]) -> Mapping[Slot, Depth]:
        queues = self._connect()
        try:
            return {slot: depth for (_, slot), depth in queues.depths([(self._name, name) for name in names]).items()}
        finally:
            queues.close()
