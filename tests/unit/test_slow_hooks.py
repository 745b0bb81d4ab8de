"""Handlers of an application that take long, in a worker of two keyspaces whose members share one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from celery_sticky.execution.hooks import WorkerHooks
from celery_sticky.keys import SlotId
from celery_sticky.membership.clerk import URGENT
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.member import Member
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.ownership.events import Drained, Opened
from celery_sticky.ownership.machine import MemberConfig, Phase
from celery_sticky.ownership.view import View
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.stores.base import Store
from celery_sticky.stores.memory.shared import MemoryShared
from celery_sticky.stores.memory.store import MemoryStore, memory_server
from celery_sticky.testing.waiting import wait_until

SLOW, OTHER, SLOTS = "slow", "other", 4


class AtOnce:
    """Slots that open and drain at once."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        assert isinstance(slot[1], int)
        self.members[slot[0]].post(Opened(slot[1], epoch))

    def stop(self, slot: SlotId) -> None:
        assert isinstance(slot[1], int)
        self.members[slot[0]].post(Drained(slot[1]))

    def close(self, slot: SlotId) -> None: ...


class Hooks(WorkerHooks):
    """An application; its handlers for one keyspace return when the door is open."""

    heeded = True

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[tuple[str, str, int]] = []
        self.door = Event()

    def gained(self, keyspace: str, slots: frozenset[int]) -> None:
        self._tell("gained", keyspace, slots)

    def lost(self, keyspace: str, slots: frozenset[int]) -> None:
        self._tell("lost", keyspace, slots)

    def _tell(self, what: str, keyspace: str, slots: frozenset[int]) -> None:
        if keyspace == SLOW:
            assert self.door.wait(20)
        self.told.append((what, keyspace, len(slots)))


class Worker:
    def __init__(self, folder: Path) -> None:
        self.name = f"hooks-{time.monotonic_ns()}"
        self.hooks, slots = Hooks(), AtOnce()
        self.told, self.door = self.hooks.told, self.hooks.door
        thread: FlowThread[Store] = FlowThread(lambda: MemoryShared(self.name, "p"), urgent=URGENT)
        config = MemberConfig("w", "origin", SLOTS, "h", ttl=1.5, margin=0.4, settle=0.05, broker_grace=30.0)
        lease = Lease({SLOW: SLOTS, OTHER: SLOTS})
        for keyspace in (SLOW, OTHER):
            slots.members[keyspace] = Member(
                keyspace,
                lambda _: config,
                thread,
                slots,
                lease,
                NameLock(folder, "store", keyspace, "w"),
                self.hooks,
                revoke_ttl=60.0,
                revoke_limit=10,
            )
        self.slow, self.other = slots.members[SLOW], slots.members[OTHER]
        self.slow.start()
        self.other.start()

    def view(self, keyspace: str) -> View:
        view = MemoryStore(memory_server(self.name, "p"), keyspace).read().view
        assert view is not None
        return view

    def heartbeats(self, keyspace: str) -> int:
        return max(MemoryStore(memory_server(self.name, "p"), keyspace).read().heartbeats.values(), default=0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.door.set()
    for member in (worker.slow, worker.other):
        member.finish(5.0)


def test_a_slow_handler_delays_no_heartbeat_of_another_keyspace(worker: Worker) -> None:
    wait_until(lambda: worker.other.slots() == (SLOTS, 0), 30, "it has its slots")
    assert ("gained", SLOW, SLOTS) not in worker.told, "that handler has not returned yet"
    before = worker.heartbeats(OTHER)
    wait_until(lambda: worker.heartbeats(OTHER) >= before + 3, 10, "its heartbeats go on")
    worker.door.set()
    wait_until(lambda: ("gained", SLOW, SLOTS) in worker.told, 10, "the handler is done")


def test_slots_are_released_only_when_the_handler_has_returned(worker: Worker) -> None:
    worker.door.set()
    wait_until(lambda: worker.told.count(("gained", SLOW, SLOTS)), 30, "it has its slots")
    wait_until(lambda: worker.other.slots() == (SLOTS, 0), 30, "the other keyspace too")
    worker.door.clear()
    worker.slow.leave()
    worker.other.leave()
    wait_until(lambda: worker.other.snapshot.phase is Phase.LEFT, 10, "the other keyspace is given away")
    assert ("lost", OTHER, SLOTS) in worker.told
    assert set(worker.view(SLOW).owner) == {"w"}, "its next owner must not start yet"
    worker.door.set()
    wait_until(lambda: worker.slow.snapshot.phase is Phase.LEFT, 10, "it is given away too")
    assert worker.told[-1] == ("lost", SLOW, SLOTS)
