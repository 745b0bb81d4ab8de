"""The placer with a real courier, against the memory store and the memory broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from celery_sticky.delivery import key_claims
from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import CourierConfig
from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.line import ThreadedLine
from celery_sticky.delivery.state import End
from celery_sticky.envelope import Envelope
from celery_sticky.errors import StickyError
from celery_sticky.keys import SlotId, slot_for
from celery_sticky.keyspace import Keyspace
from celery_sticky.membership.flow import Snapshot
from celery_sticky.membership.lease import Lease
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.ownership import changes
from celery_sticky.ownership.events import Event
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.placement import lost_pins, state, worker_queues
from celery_sticky.placement.placer import Placer
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.queues.base import Outcome, Tenure, Want
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore, Records
from celery_sticky.stores.shared import OwnClient
from celery_sticky.testing.queue_steps import open_slot
from celery_sticky.testing.waiting import wait_until

KS, SLOTS = "pinned", 8


class World:
    """A store, a broker, and workers of one keyspace with pins."""

    def __init__(self) -> None:
        self.server, self.broker = MemoryServer(), MemoryBroker()
        self.store = MemoryStore(self.server, KS)
        self.placement_store = MemoryPlacementStore(self.server, KS)
        self.view: View | None = None
        self.workers: dict[str, Worker] = {}

    def write(self, change: Callable[[View], View]) -> None:
        """Replace the document, and tell every worker."""
        old = self.view
        first = changes.fresh(slots=SLOTS, hash="h", generation=1, version=1, store_id=self.server.run_id)
        self.view = change(old or first)
        assert self.store.swap(old, self.view)
        for worker in self.workers.values():
            worker.see(self.view)

    def up(self, name: str, keyspace: Keyspace) -> Worker:
        """Start a worker."""
        self.workers[name] = worker = Worker(self, name, keyspace)
        worker.join(1)
        return worker

    def evict(self, name: str) -> None:
        """Take a worker out of the view, whose trust has ended before."""
        self.workers[name].trusted = False
        self.write(lambda view: changes.evict(view, name))

    def send(self, worker: str, *ids: str) -> None:
        """Put messages `<key><n>` into the worker queue of a worker."""
        for one in ids:
            stamp = Stamp(one[0], KS, slot_for(one[0], SLOTS), SLOTS, 0.0).to_header()
            headers = {"task": "t", "id": one, STAMP_HEADER: stamp}
            body = {"headers": headers, "properties": {"body_encoding": "base64"}, "body": "W10="}
            self.broker.publish((KS, WorkerQueue(worker)), json.dumps(body).encode())


class Worker:
    """A courier, a placer, and a pool that the test plays."""

    def __init__(self, world: World, name: str, keyspace: Keyspace) -> None:
        self.world, self.name, self.incarnation = world, name, ""
        self.trusted = True
        self.lost: list[list[str]] = []
        self.forgotten: list[str] = []
        self.buried: list[tuple[str, str]] = []
        config = CourierConfig(
            keyspaces=(KS,),
            worker=name,
            max_waiting=100,
            max_waiting_bytes=1 << 20,
            max_attempts=5,
            broker_grace=30.0,
            placed=(KS,),
        )
        self.courier = Courier(
            ThreadedLine(lambda: MemoryQueues(world.broker)),
            config,
            self._report,
            lambda _: self.trusted,
            lambda _: self.placer.wake(),
        )
        self.placer = Placer(
            keyspace,
            SLOTS,
            name,
            FlowThread(lambda: OwnClient(placement_store=lambda _: MemoryPlacementStore(world.server, KS))),
            lambda: MemoryQueues(world.broker),
            self.courier,
            Lease({KS: SLOTS}),
            lambda event: None,
            self,
        )
        self.courier.start(self)
        self.placer.start()

    def _report(self, _keyspace: str, event: Event) -> None:
        if isinstance(getattr(event, "slot", None), WorkerQueue):
            self.placer.report(event)

    def join(self, count: int) -> None:
        """Be a member, for the `count`th time."""
        self.incarnation, self.trusted = f"{self.name}-{count}", True
        self.world.placement_store.enlist(self.name, self.incarnation)
        self.world.write(
            lambda view: changes.join(view, Member(self.name, self.incarnation, attributes={HAS_WORKER_QUEUE: "1"}))
        )

    def see(self, view: View) -> None:
        """Learn of a view."""
        there = self.name in view.members and view.members[self.name].incarnation == self.incarnation
        self.placer.observe(Snapshot(Phase.IN if there else Phase.OUT, self.incarnation, view))

    def heartbeat(self) -> None:
        """Have a heartbeat counted, as the member does."""
        self.placer.heartbeat_done(self.incarnation, self.world.store.heartbeat(self.incarnation).counter)

    def start(self) -> dict[str, Entry]:
        """Start what may start."""
        started = {}
        for entry in self.courier.take(10):
            assert self.courier.start_entry(entry, entry.turn)
            entry.began = True
            started[entry.content.envelope.task_id] = entry
        return started

    def started(self, *ids: str) -> list[Entry]:
        """Wait until these have started."""
        started: dict[str, Entry] = {}

        def all_there() -> bool:
            started.update(self.start())
            return started.keys() >= set(ids)

        wait_until(all_there, 10, f"{ids} start at {self.name}", 0.005)
        assert sorted(started) == sorted(ids)
        return [started[one] for one in ids]

    def close(self) -> None:
        """End the threads."""
        self.placer.finish(5.0)
        self.courier.shutdown(5.0)

    # -- what the application is told ----------------------------------------------------------

    def pins_lost(self, keys: frozenset[str]) -> None:
        self.lost.append(sorted(keys))

    def pins_forgotten(self) -> None:
        self.forgotten.append(self.incarnation)

    # -- the courier's host --------------------------------------------------------------------

    def concurrency(self) -> int:
        return 4

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        return (slot[0], envelope.headers[STAMP_HEADER]["key"])

    def claim_of(self, envelope: Envelope) -> None:
        return None

    def due_of(self, envelope: Envelope) -> None:
        return None

    def ready(self) -> None:
        """The test takes when it likes."""

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        self.buried += [(envelope.task_id, str(error)) for envelope, error in messages]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for worker in made.workers.values():
        worker.close()


def test_a_key_that_was_taken_over_starts_nothing_more_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: who has claimed a key hears of its new pin at once, not at the next review."""
    monkeypatch.setattr(key_claims, "REVIEW", 3600.0)
    keyspace = Keyspace(KS, pins=True)
    a, b = world.up("a", keyspace), world.up("b", keyspace)
    world.placement_store.pin("a", "k", take=False)
    world.send("a", "k1", "k2", "k3")
    (running,) = a.started("k1")
    world.placement_store.pin("b", "k", take=True)
    wait_until(lambda: len(standing(world, "b")) == 2, 10, "what has not started goes to b", 0.005)
    world.send("a", "k4")
    wait_until(lambda: len(standing(world, "b")) == 3, 10, "so does what comes now", 0.005)
    assert not a.start() and not b.start(), "the key is claimed until its task has ended"
    a.courier.end(running, End(Outcome.ACK))
    for name in ("k2", "k3", "k4"):
        (running,) = b.started(name)
        b.courier.end(running, End(Outcome.ACK))


def test_what_waited_for_a_run_to_begin_is_passed_on_soon_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the key is asked about again at once, not at the next review."""
    monkeypatch.setattr(key_claims, "REVIEW", 3600.0)
    keyspace = Keyspace(KS, pins=True)
    a, b = world.up("a", keyspace), world.up("b", keyspace)
    world.placement_store.pin("a", "k", take=False)
    world.send("a", "k1", "k2")
    (running,) = a.started("k1")
    running.began = False
    world.placement_store.pin("b", "k", take=True)
    known = a.courier.consult(lambda state: state.claims._find(KS, "k"))
    assert known is not None
    wait_until(lambda: known.elsewhere and known.ask_at > key_claims.DUE, 10, "a knows of the pin", 0.005)
    assert not standing(world, "b"), "k1 may never begin"
    running.began = True
    wait_until(lambda: len(standing(world, "b")) == 1, 10, "k2 goes to b", 0.005)
    a.courier.end(running, End(Outcome.ACK))
    b.started("k2")


def test_where_an_older_copy_of_the_store_has_come_back_nothing_is_claimed_under_its_document(world: World) -> None:
    """Guards: the copy has forgotten a claim of the moment before, though members are the same as then."""
    keyspace = Keyspace(KS, pins=True)
    a, b = world.up("a", keyspace), world.up("b", keyspace)
    world.placement_store.pin("b", "k", take=False)
    copy = deepcopy(world.server.records)
    world.placement_store.pin("a", "k", take=True)
    for worker in (a, b):
        worker.heartbeat()
    world.send("a", "k1")
    a.started("k1")
    with world.server.changed:
        world.server.records = copy
    b.heartbeat()
    world.send("b", "k2")
    wait_until(lambda: world.store.read().view is None, 10, "nobody acts on that document any more", 0.005)
    assert not b.start(), "it runs at a still"


def test_a_heartbeat_tells_of_an_older_copy_though_nothing_is_to_be_claimed(world: World) -> None:
    """Guards: a worker that joins then could claim what runs here under a claim that was forgotten."""
    a = world.up("a", Keyspace(KS, pins=True))
    a.heartbeat()
    copy = deepcopy(world.server.records)
    world.send("a", "k1")
    world.placement_store.pin("a", "k", take=True)
    a.started("k1")
    for _ in range(2):
        a.heartbeat()
    with world.server.changed:
        world.server.records = copy
    assert world.store.read().view is not None, "it is the same document"
    a.heartbeat()
    wait_until(lambda: world.store.read().view is None, 10, "nobody joins by that document", 0.005)


def standing(world: World, worker: str) -> list[Any]:
    """Return what stands in the worker queue of a worker, or is in flight there."""
    slot = world.broker.slot(KS, WorkerQueue(worker))
    return [*slot.flight.values(), *slot.waiting]


def test_pins_that_another_worker_takes_are_told(world: World) -> None:
    keyspace = Keyspace(KS, pins=True)
    a, b = world.up("a", keyspace), world.up("b", keyspace)
    for key in "klm":
        world.placement_store.pin("a", key, take=False)
    world.placement_store.unpin("a", "m")
    world.placement_store.pin("b", "k", take=True)
    wait_until(lambda: a.lost == [["k"]], 2, "it is told at once", 0.005)
    world.placement_store.pin("b", "m", take=True)
    world.placement_store.pin("b", "l", take=True)
    wait_until(lambda: a.lost == [["k"], ["l"]], 2, "once each, and not what it had let go", 0.005)
    assert not b.lost


def test_a_hint_that_was_lost_is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_pins, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(state, "IDLE", 0.1)
    monkeypatch.setattr(world.server, "signal", lambda *_, **__: None)
    keyspace = Keyspace(KS, pins=True)
    a, _ = world.up("a", keyspace), world.up("b", keyspace)
    world.placement_store.pin("a", "k", take=False)
    world.placement_store.pin("b", "k", take=True)
    wait_until(lambda: a.lost == [["k"]], 5, "it is told in the end", 0.005)


def test_pins_of_an_incarnation_that_is_gone_are_told_when_the_worker_is_back_and_may_pin(world: World) -> None:
    keyspace = Keyspace(KS, pins=True)
    a, b = world.up("a", keyspace), world.up("b", keyspace)
    for key in "klmn":
        world.placement_store.pin("a", key, take=False)
    world.evict("a")
    world.placement_store.pin("b", "k", take=False)
    time.sleep(0.1)
    assert not a.lost
    a.join(2)
    wait_until(lambda: a.lost == [["k", "l", "m", "n"]], 5, "all are told", 0.005)
    world.placement_store.pin("a", "l", take=False)
    world.evict("a")
    a.join(3)
    wait_until(lambda: a.lost[1:] == [["l"]], 5, "and of the next incarnation its own", 0.005)
    assert not b.lost


def test_another_process_of_the_same_name_has_lost_nothing(world: World) -> None:
    keyspace = Keyspace(KS, pins=True)
    former = world.up("a", keyspace)
    world.placement_store.pin("a", "k", take=False)
    world.evict("a")
    former.close()
    worker = Worker(world, "a", keyspace)
    world.workers["a"] = worker
    worker.join(2)
    world.placement_store.pin("a", "l", take=False)
    wait_until(lambda: worker.placer._state._lost_pins._look_at > 0, 5, "it has looked")
    assert not worker.lost


def test_that_the_store_has_forgotten_pins_is_told_once_when_the_worker_has_joined_again(world: World) -> None:
    keyspace = Keyspace(KS, pins=True)
    a = world.up("a", keyspace)
    world.placement_store.pin("a", "k", take=False)
    world.evict("a")
    a.join(2)
    wait_until(lambda: a.lost == [["k"]], 5, "the store knows which pins are lost", 0.005)
    assert not a.forgotten
    world.evict("a")
    with world.server.changed:
        world.server.records = Records()
    fresh = changes.fresh(slots=SLOTS, hash=keyspace.hash_name, generation=2, version=100, store_id=world.server.run_id)
    assert world.store.swap(None, fresh)
    world.view = fresh
    a.join(3)
    wait_until(lambda: a.forgotten == ["a-3"], 5, "the store does not know", 0.005)
    world.evict("a")
    a.join(4)
    world.placement_store.pin("a", "k", take=False)
    world.evict("a")
    a.join(5)
    wait_until(lambda: a.lost[1:] == [["k"]], 5, "now it knows again", 0.005)
    assert a.forgotten == ["a-3"]


def test_after_a_day_away_nobody_knows_which_pins_are_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_pins, "LOST_KEPT", -1.0)
    a = world.up("a", Keyspace(KS, pins=True))
    wait_until(lambda: a.placer._state._lost_pins._look_at > 0, 5, "it has looked")
    world.evict("a")
    a.join(2)
    wait_until(lambda: a.forgotten == ["a-2"], 5, "it is told", 0.005)


def test_nothing_is_told_while_no_receiver_could_pin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: a worker that thaws hears of its pins when it is a member again, not before it knows that it is none."""
    monkeypatch.setattr(lost_pins, "LOOK_EVERY", 0.01)
    keyspace = Keyspace(KS, pins=True)
    a, _ = world.up("a", keyspace), world.up("b", keyspace)
    world.placement_store.pin("a", "k", take=False)
    a.trusted = False
    world.placement_store.pin("b", "k", take=True)
    for _ in range(20):
        a.placer.wake()
        time.sleep(0.01)
    assert not a.lost
    a.trusted = True
    a.placer.wake()
    wait_until(lambda: a.lost == [["k"]], 5, "it is told when its lease is trusted", 0.005)


def test_the_queue_of_a_worker_that_is_gone_is_looked_after_until_it_has_been_empty_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in (
        (state, "IDLE", 0.02),
        (worker_queues, "LOOK_EVERY", 0.02),
        (worker_queues, "COUNTED_EVERY", 0.02),
    ):
        monkeypatch.setattr(module, name, seconds)
    keyspace = Keyspace(KS, pins=True)
    a, _ = world.up("a", keyspace), world.up("b", keyspace)
    world.evict("a")
    world.send("a", "k1")  # by somebody who knows no better
    wait_until(lambda: not standing(world, "a"), 5, "it is emptied", 0.005)
    assert set(world.placement_store.enlisted()) == {"a", "b"}
    monkeypatch.setattr(worker_queues, "KEPT", 0.1)
    wait_until(lambda: set(world.placement_store.enlisted()) == {"b"}, 5, "it is forgotten")
    time.sleep(0.1)
    world.send("a", "k2")
    time.sleep(0.2)
    assert len(standing(world, "a")) == 1, "nobody looks there any more"
    a.join(2)
    wait_until(lambda: not standing(world, "a"), 5, "until a worker of that name is back", 0.005)


def fence(world: World, worker: str) -> str:
    """Return the incarnation for which the worker queue of a worker is fenced."""
    tenure = world.broker.slot(KS, WorkerQueue(worker)).fence
    return tenure.incarnation if tenure is not None else ""


def test_the_queue_of_a_worker_that_is_gone_is_opened_by_a_trusted_successor_only(world: World) -> None:
    """Guards: without trust the document may be one that is lost, and the worker be back by the next one."""
    keyspace = Keyspace(KS, pins=True)
    world.up("a", keyspace)
    b = world.up("b", keyspace)
    wait_until(lambda: fence(world, "a") == "a-1", 5, "a reads its queue", 0.005)
    b.trusted = False
    world.evict("a")
    time.sleep(0.2)
    assert fence(world, "a") == "a-1"
    b.trusted = True
    wait_until(lambda: fence(world, "a") == "b-1", 5, "b empties it", 0.005)


def test_a_worker_finds_out_that_somebody_has_taken_messages_from_its_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: what was empty when it was last fetched from is not fetched from again until it gets a message."""
    monkeypatch.setattr(state, "IDLE", 0.02)
    monkeypatch.setattr(worker_queues, "LOOK_EVERY", 0.02)
    a = world.up("a", Keyspace(KS, pins=True))
    wait_until(lambda: fence(world, "a") == "a-1", 5, "a reads its queue", 0.005)
    thief, tenure = MemoryQueues(world.broker), Tenure(KS, WorkerQueue("a"), 99, "x-1", 1)
    open_slot(thief, tenure)
    with world.broker.changed:
        world.send("a", "k1")
        assert thief.fetch([Want(tenure, 1)], [], 0.0).deliveries
    world.placement_store.pin("a", "k", take=False)
    a.started("k1")
