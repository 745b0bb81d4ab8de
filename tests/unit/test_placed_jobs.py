"""Placers and keepers of several workers on one store, under random moves, deaths and delays, without threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest
from harness.fake_host import FakeHost, World

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.errors import NotAMember, NotPinned, NoWorker, StoreUnavailable
from celery_sticky.flows import run_flow
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.keys import hash_key, slot_for
from celery_sticky.keyspace import Keyspace, Worker, placement_of, workers_of
from celery_sticky.membership.flow import Snapshot
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership import changes
from celery_sticky.ownership.events import Drained, Event, ViewChanged, WorkerQueueClosed
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, MemberState, View
from celery_sticky.placement.flow import Request
from celery_sticky.placement.placer import Placer
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.slots import KeyPlace, Slot, WorkerQueue
from celery_sticky.stores.flow import Aside, Pause, Watch, serve
from celery_sticky.stores.jobs import Admission, JobPlaces, JobRecord, JobState, NewJob, Reserved, SlotJobs
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.stores.placement import Claims, Look, PinMoved, Version, Wish
from celery_sticky.stores.shared import OwnClient

SLOTS = 4
KEYS = [f"k{i}" for i in range(8)]
NEVER = 1e9
TERMS = JobTimeouts(start_timeout=1000.0, stop_timeout=1000.0, max_attempts=1000)


def rendezvous(key: str, workers: Sequence[Worker]) -> Worker:
    return max(workers, key=lambda worker: hash_key(f"{worker.name} {key}".encode()))


KEYSPACES = (
    Keyspace("ks", pins=True),
    Keyspace("ks", pins=True, unpinned="refuse"),
    Keyspace("ks", assign=rendezvous),
    Keyspace("ks", assign=rendezvous, pins=True),
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Faults:
    """Loses answers now and then: what was asked has been done all the same."""

    def __init__(self, seed: int) -> None:
        self._random, self.share = random.Random(seed), 0.0

    def __call__(self) -> None:
        if self._random.random() < self.share:
            raise StoreUnavailable


class Jobs(MemoryJobs):
    """A client that may be deaf: then it has to look."""

    deaf = False
    lose: Faults

    def open(self, slot: Slot, epoch: int) -> None:
        super().open(slot, epoch)
        self.lose()

    def reserve(self, *args: Any, **options: Any) -> Reserved:
        reserved = super().reserve(*args, **options)
        self.lose()
        return reserved

    def settle(self, *args: Any, **options: Any) -> int:
        revision = super().settle(*args, **options)
        self.lose()
        return revision

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        self.lose()
        return super().look(known)

    def places(self, known: int) -> JobPlaces | None:
        self.lose()
        return super().places(known)

    def watch(self, timeout: float) -> Sequence[Slot]:
        return () if self.deaf else super().watch(0.0)


class PlacementStore(MemoryPlacementStore):
    """Likewise."""

    deaf = False
    rest = 0.0
    lose: Faults

    def look(self, known: Version, keys: Collection[str]) -> Look:
        self.lose()
        return super().look(known, keys)

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        claims = super().claim(incarnation, call, known, wishes, heartbeats)
        self.lose()
        return claims

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        super().release(incarnation, call, keys)
        self.lose()

    def watch(self, timeout: float) -> Sequence[ViewChanged | PinMoved]:
        self.rest = timeout
        return () if self.deaf else super().watch(0.0)


class Courier:
    """Has nothing to deliver."""

    def __init__(self) -> None:
        self.delivery_state = DeliveryState(
            lambda *_: None, worker="w", concurrency=lambda: 4, max_waiting=100, max_attempts=3
        )
        self.placer: Placer

    def trusts(self, keyspace: str) -> bool:
        return True

    def consult(self, ask: Callable[[DeliveryState], Any]) -> Any:
        return ask(self.delivery_state)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        tell(self.delivery_state, 0.0)

    def open(self, *_: Any) -> None: ...

    def close(self, *_: Any) -> None: ...

    def stop(self, place: tuple[str, Slot]) -> None:
        self.placer.report(Drained(place[1]))


class Node:
    """A worker: placer, keeper and host. Its application does not care for lost pins."""

    def pins_lost(self, keys: frozenset[str]) -> None: ...

    def pins_forgotten(self) -> None: ...

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name, self.cluster = name, cluster
        self.lives = 0
        self.phase = Phase.OUT
        self.lease = Lease({"ks": SLOTS})
        self.courier = cast(Any, Courier())
        self.store = Jobs(cluster.job_server, "ks")
        self.placement_store = PlacementStore(cluster.server, "ks")
        self.enlisting = MemoryPlacementStore(cluster.server, "ks")
        self.store.deaf = self.placement_store.deaf = cluster.deaf
        self.store.lose = self.placement_store.lose = cluster.faults
        self.placer = Placer(
            cluster.keyspace,
            SLOTS,
            name,
            FlowThread(OwnClient),
            lambda: MemoryQueues(MemoryBroker()),
            self.courier,
            self.lease,
            self._report,
            self,
            cluster.clock,
        )
        self.courier.placer = self.placer
        self.host = FakeHost(name, cluster.world)
        here = Surroundings(
            "ks",
            name,
            self.host,
            partial(self.lease.trusted, "ks"),
            lambda event: None,
            cluster.clock,
            poll=0.0 if cluster.deaf else NEVER,
            outcome_ttl=60.0,
            placer=self.placer.jobs,
        )
        reconciler = JobReconciler(TERMS, place=self._place, keyspace="ks")
        self.keeper = Keeper(here, reconciler, FlowThread(OwnClient))
        self.placer.jobs.keeper = self.keeper
        self.host.keeper = self.keeper
        self.host.boot()
        for client in (self.store, self.placement_store):
            client.watch(0.0)
        self.closed = ""

    def _place(self, record: JobRecord, home: Home) -> int:
        return self.host.place(("ks", record.id), "", home)

    @property
    def incarnation(self) -> str:
        return f"{self.name}-{self.lives}"

    def _report(self, event: Event) -> None:
        assert isinstance(event, WorkerQueueClosed)
        self.closed = event.incarnation

    def observe(self) -> None:
        """Hear of the newest view; who is no member any more learns it."""
        view = self.cluster.view
        if self.phase is Phase.IN and view.member_of(self.incarnation) is None:
            self.phase, self.lives = Phase.OUT, self.lives + 1
            if not self.host.up:
                self.host.boot()
        self.placer.observe(Snapshot(self.phase, self.incarnation, view))

    def join(self) -> None:
        if self.phase is Phase.OUT and self.name not in self.cluster.view.members:
            self.enlisting.enlist(self.name, self.incarnation)
            member = Member(self.name, self.incarnation, attributes={HAS_WORKER_QUEUE: "1"})
            self.cluster.swap(changes.join(self.cluster.view, member))
            self.phase = Phase.IN
            self.lease.grant("ks", boottime() + 1e6, self.lease.membership("ks") + 1)
            self.observe()

    def work(self) -> None:
        with suppress(StoreUnavailable):
            self.keeper.heed(self.store.watch(0.0))
            serve(self.keeper.turn(), self.store)

    def worker_queue(self) -> None:
        run_flow(self.placer._routine.turn(), self._perform)

    def _perform(self, request: Request) -> object:
        match request:
            case Watch(seconds):
                return self.placement_store.watch(seconds)
            case Aside(call):
                return call()
            case Pause():
                return None
        return self.placer._routine.perform(request, self.placement_store)


class Cluster:
    """Workers of one placed keyspace."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.random, self.clock = random.Random(seed), clock
        self.keyspace = KEYSPACES[seed % 4]
        self.deaf = bool(seed // 4 % 2)
        self.faults = Faults(seed)
        self.faults.share = 0.1 if seed // 8 % 2 else 0.0
        self.server, self.job_server = MemoryServer(), MemoryJobServer()
        self.documents, self.jobs = MemoryStore(self.server, "ks"), MemoryJobs(self.job_server, "ks")
        self.pins = MemoryPlacementStore(self.server, "ks")
        self.world = World()
        view = changes.fresh(slots=SLOTS, hash="h", generation=1, version=1, store_id=self.server.run_id)
        assert self.documents.swap(None, view)
        self.view: View = view
        self.nodes = {name: Node(self, name) for name in "abc"}
        self.wanted: dict[str, str] = {}
        self.sent: dict[str, list[int]] = {}
        for node in self.nodes.values():
            node.join()

    def swap(self, new: View) -> None:
        assert self.documents.swap(self.view, new)
        self.view = new

    # -- what may happen -----------------------------------------------------------------------

    def node(self) -> Node:
        return self.random.choice(sorted(self.nodes.values(), key=lambda node: node.name))

    def dispatch(self) -> None:
        key = self.random.choice(KEYS)
        job = NewJob("job", key, KeyPlace(key), f"{key}-{self.random.random()}", b"1")
        admission, _ = self.jobs.admit(job, max_queued=1000, outcome_ttl=60)
        assert (admission is Admission.ADMITTED) == (key not in self.wanted)
        if admission is Admission.ADMITTED:
            self.wanted[key] = job.id

    def stop(self) -> None:
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            assert self.jobs.stop(KeyPlace(key), "job", key)
            del self.wanted[key]
            self.sent.pop(key, None)

    def notify(self) -> None:
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            numbers = self.sent.setdefault(key, [])
            numbers.append(len(numbers))
            self.jobs.notify(KeyPlace(key), "job", key, b"%d" % numbers[-1], limit=1000)

    def pin(self) -> None:
        if self.keyspace.pins:
            with suppress(NotAMember):
                self.pins.pin(self.node().name, self.random.choice(KEYS), take=self.random.random() < 0.5)

    def unpin(self) -> None:
        if self.keyspace.pins:
            self.pins.unpin(self.node().name, self.random.choice(KEYS))

    def evict(self) -> None:
        """A worker's trust ends, so that its host dies; it hears of it later."""
        node = self.node()
        if self.view.member_of(node.incarnation) is not None and len(self.view.members) > 1:
            node.host.die()
            node.lease.grant("ks", 0.0, node.lease.membership("ks"))
            self.swap(changes.evict(self.view, node.name))

    def leave(self) -> None:
        node = self.node()
        me = self.view.members.get(node.name)
        others = [one for one in self.view.active if one.name != node.name]
        if me is not None and me.incarnation == node.incarnation and me.state is MemberState.ACTIVE and others:
            self.swap(changes.leave(self.view, node.name))
            node.observe()

    def host_dies(self) -> None:
        node = self.node()
        node.host.die()
        node.host.boot()

    def join(self) -> None:
        self.node().join()

    def hand_over(self) -> None:
        """Slots have no tasks here: they go at once. Who leaves departs when it says that it may."""
        for name in list(self.view.members):
            if giving := self.view.giving(name):
                self.swap(changes.release(self.view, name, giving))
        for node in self.nodes.values():
            me = self.view.members.get(node.name)
            if me is not None and node.closed == me.incarnation and node.name not in self.view.owner:
                ours = [job for job, (worker, _) in self.world.running.items() if worker == node.name]
                assert not ours, f"{node.name} departs while it runs {ours}"
                node.lease.grant("ks", 0.0, node.lease.membership("ks"))
                self.swap(changes.depart(self.view, node.name))

    def step(self) -> None:
        self.clock.now += 0.05
        node = self.node()
        happens = (
            node.work,
            node.work,
            node.worker_queue,
            node.worker_queue,
            node.host.step,
            node.host.step,
            node.observe,
        )
        self.random.choice((*happens, self.hand_over))()

    def settle(self) -> None:
        self.faults.share = 0.0
        for node in self.nodes.values():
            node.observe()
            node.join()
        for _ in range(200):
            self.clock.now += 0.6
            self.hand_over()
            for node in self.nodes.values():
                node.observe()
                node.worker_queue()
                node.work()
                while node.host.inbox:
                    node.host.step()

    # -- what has to be so ---------------------------------------------------------------------

    def placement_of(self, key: str) -> str | None:
        """Return the worker that the key belongs to."""
        pin = self.pins.look((0, 0), [key]).pins.get(key)
        try:
            place = placement_of(self.keyspace, key, SLOTS, self.view, workers_of(self.view), pin)
        except (NotPinned, NoWorker):
            return None
        return place.worker if isinstance(place, WorkerQueue) else self.view.owner[place]

    def check(self) -> None:
        homes = {key: home for key in self.wanted if (home := self.placement_of(key)) is not None}
        assert {key: worker for (_, key), (worker, _) in self.world.running.items()} == homes
        records = {record.key: record for record in self.jobs.records()}
        assert records.keys() == self.wanted.keys()
        for key, record in records.items():
            assert record.id == self.wanted[key]
            if key in homes:
                assert (record.state, record.fresh) == (JobState.RUNNING, False)
            else:
                assert record.state is (JobState.QUEUED if record.attempt == 0 else JobState.FAILING) or record.fresh
        for key in homes.keys() & self.sent.keys():
            firsts = list(dict.fromkeys(self.world.noted.get(self.wanted[key], [])))
            assert firsts == self.sent[key], f"notes of {key}"
        claims = self.server.records.placement_stores["ks"].claims
        live = {key for key, (_, by) in claims.items() if self.view.member_of(by)}
        assert live == self.wanted.keys(), "a claim for each key with jobs, and for no other"
        assert set(self.job_server.records["ks"].slots) <= {KeyPlace(key) for key in self.wanted}


def live_through(seed: int, clock: Clock, steps: int = 250) -> Cluster:
    cluster = Cluster(seed, clock)
    happenings = (
        [cluster.dispatch] * 8
        + [cluster.stop, cluster.notify, cluster.notify, cluster.pin, cluster.pin, cluster.unpin]
        + [cluster.evict, cluster.leave, cluster.join, cluster.join, cluster.host_dies]
    )
    try:
        for _ in range(steps):
            if cluster.random.random() < 0.15:
                cluster.random.choice(happenings)()
            cluster.step()
        cluster.settle()
        cluster.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}") from error
    return cluster


@pytest.mark.parametrize("block", range(8))
def test_jobs_run_once_where_their_keys_belong_whatever_happens(block: int, clock: Clock) -> None:
    for seed in range(block * 25, block * 25 + 25):
        live_through(seed, clock)


# -- one rule at a time ----------------------------------------------------------------------------


def at_home(clock: Clock, keyspace: int = 2) -> tuple[Cluster, str, Node]:
    """Return workers, a key with a job that runs, and where it does."""
    cluster = Cluster(keyspace, clock)
    cluster.dispatch()
    cluster.settle()
    (key,) = cluster.wanted
    node = cluster.nodes[cluster.world.running["job", key][0]]
    return cluster, key, node


def test_an_evicted_worker_kills_what_runs_and_holds_no_place(clock: Clock) -> None:
    cluster, key, node = at_home(clock)
    cluster.swap(changes.evict(cluster.view, node.name))
    node.observe()
    node.work()
    assert not cluster.world.running and not node.host.runs
    cluster.settle()
    assert cluster.world.running["job", key][1] > cluster.world.starts[0][2]


def test_a_placer_rests_when_there_is_nothing_to_do_also_as_no_member(clock: Clock) -> None:
    """Guards: where threads are greenlets, one that does not rest keeps all others from running."""
    cluster, _, node = at_home(clock)
    for _ in range(3):
        node.worker_queue()
    assert node.placement_store.rest >= 1.0
    cluster.swap(changes.evict(cluster.view, node.name))
    node.observe()
    for _ in range(3):
        node.worker_queue()
    assert node.placement_store.rest >= 1.0


def test_a_leaving_worker_that_still_has_slots_may_still_get_jobs_and_so_stays(clock: Clock) -> None:
    cluster = Cluster(0, clock)
    cluster.settle()
    node = cluster.nodes["a"]
    (slot, *_) = cluster.view.owned_by("a")
    key = next(f"k{i}" for i in range(99) if slot_for(f"k{i}", SLOTS) == slot)
    cluster.swap(changes.leave(cluster.view, "a"))
    node.observe()
    for _ in range(3):
        node.worker_queue()
    assert not node.closed
    cluster.jobs.admit(NewJob("job", key, KeyPlace(key), "late", b"1"), max_queued=9, outcome_ttl=9)
    cluster.wanted[key] = "late"
    for _ in range(6):
        node.work()
        node.worker_queue()
        node.host.step()
    assert cluster.world.running["job", key][0] == "a"
    cluster.settle()
    cluster.check()
    assert "a" not in cluster.view.members


def test_a_pin_is_heard_of_at_once(clock: Clock) -> None:
    cluster, key, node = at_home(clock, keyspace=0)
    other = next(one for one in cluster.nodes.values() if one is not node)
    for one in (node, other):
        one.worker_queue()
    cluster.pins.pin(other.name, key, take=True)
    for _ in range(6):
        for one in (node, other):
            one.worker_queue()
            one.work()
            while one.host.inbox:
                one.host.step()
        clock.now += 0.1  # far less than until pins are looked up without a word
    assert cluster.world.running["job", key][0] == other.name


def test_a_placer_that_has_yet_to_learn_that_it_was_evicted_claims_nothing(clock: Clock) -> None:
    _, _, node = at_home(clock)
    claims, earlier = node.courier.delivery_state.claims, node.incarnation
    claims.serve("ks", "the next", WorkerQueue("me"))
    node.placer.jobs.reset()
    node.placer.jobs.decide(node.placer._state._scene, earlier)
    assert claims.questions("ks", clock.now + 99, 9) == []


def test_a_key_that_another_worker_has_is_asked_of_less_and_less_often(clock: Clock) -> None:
    cluster, _, node = at_home(clock)
    other = next(one for one in cluster.nodes.values() if one is not node)
    cluster.keyspace = Keyspace("ks", assign=lambda key, workers: other.name, version="2")
    other.placer._state.keyspace = cluster.keyspace
    other.placer.jobs.review()
    asked = 0
    claim = other.placement_store.claim

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return claim(*args, **options)

    other.placement_store.claim = counted  # type: ignore[method-assign]
    for _ in range(200):
        other.worker_queue()
        clock.now += 0.05
    assert 20 <= asked <= 50, "in ten seconds, a tenth of the time waited between two"
