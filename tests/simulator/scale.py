"""A large keyspace without faults: real machines and a real store; each answer takes one round trip."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random

from celery_sticky.ownership import changes
from celery_sticky.ownership.events import (
    BeatDone,
    Drained,
    Effect,
    Event,
    Opened,
    OpenSlot,
    Read,
    ReadDone,
    Refuse,
    SendBeat,
    StopSlot,
    Swap,
    SwapDone,
    Tick,
)
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Machine, MemberConfig
from celery_sticky.ownership.plan import plan
from celery_sticky.ownership.view import Member, View
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from simulator.terms import BROKER_GRACE, HASH, KEYSPACE, MARGIN, SETTLE, TTL

HEARTBEAT = TTL / 3
"""Seconds."""
WAY = 0.001
"""Seconds to the store, and back; members differ by up to a half."""

LOOK = 0.05
"""Seconds between checks whether everything is settled."""


@dataclass(slots=True, eq=False)
class _Worker:
    machine: Machine
    store: MemoryStore
    way: float
    inbox: deque[Event] = field(default_factory=deque)
    busy: bool = False
    wake: int = 0


class Crowd:
    """Members of one keyspace; their slots open and drain at once."""

    def __init__(self, slots: int) -> None:
        self.slots, self.now = slots, 0.0
        self.commands = Counter[str]()
        """Requests to the store, by verb."""
        self.refused = 0
        """Swaps that lost the race."""
        self.server = MemoryServer()
        self.workers: list[_Worker] = []
        self._rng = Random(slots)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def found(self, members: int) -> None:
        """Create this many members, settled as if they had been there for long."""
        view = self._fresh()
        everybody = {f"w{i}": Member(f"w{i}", f"w{i}-0", joined=1) for i in range(members)}
        view = changes.replan(_with(view, everybody))
        MemoryStore(self.server, KEYSPACE).swap(None, view)
        for name in everybody:
            worker = self._worker(name)
            sent = self._rng.uniform(-HEARTBEAT, 0)
            # It has joined with this very view, and learns of it here.
            worker.machine._joining_sent = sent
            worker.machine._on_swap(SwapDone(sent, view, True), 0.0, [])
            self._after(0.0, worker)

    def found_empty(self) -> None:
        """Create a document, as `celery sticky init` does."""
        MemoryStore(self.server, KEYSPACE).swap(None, self._fresh())

    def join(self, name: str) -> None:
        """Start a worker now."""
        self._after(0.0, self._worker(name))

    def run(self, seconds: float, wanted: Callable[[], bool] = lambda: False) -> float:
        """Let time pass, at most until `wanted` returns True; return the seconds that passed."""
        begun, until, look = self.now, self.now + seconds, self.now
        while self._heap and self._heap[0][0] <= until:
            self.now, _, do = heapq.heappop(self._heap)
            do()
            if self.now >= look:
                if wanted():
                    break
                look = self.now + LOOK
        return self.now - begun

    @property
    def view(self) -> View:
        """The document."""
        view = MemoryStore(self.server, KEYSPACE).read().view
        assert view is not None
        return view

    @property
    def document(self) -> bytes:
        """The document in its stored form."""
        return self.server.records.documents[KEYSPACE]

    def all_open(self) -> bool:
        """Return whether every slot is open at its target."""
        view = self.view
        held = sum(sum(s is SlotState.OPEN for s in worker.machine.slots.values()) for worker in self.workers)
        return view.settled and not view.unowned and held == view.slots and len(view.members) == len(self.workers)

    def _fresh(self) -> View:
        return changes.fresh(slots=self.slots, hash=HASH, generation=1, version=1, store_id=self.server.run_id)

    def _worker(self, name: str) -> _Worker:
        config = MemberConfig(
            name=name,
            origin=name,
            slots=self.slots,
            hash=HASH,
            ttl=TTL,
            margin=MARGIN,
            settle=SETTLE,
            broker_grace=BROKER_GRACE,
            jitter=self._rng.random(),
        )
        store = MemoryStore(self.server, KEYSPACE)
        store.watch(0)
        worker = _Worker(Machine(config, self.now), store, WAY * self._rng.uniform(0.5, 1.5))
        self.workers.append(worker)
        return worker

    # -- what a member does --------------------------------------------------------------------

    def _after(self, delay: float, worker: _Worker) -> None:
        self._at(delay, lambda: self._turn(worker))

    def _at(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._numbers), do))

    def _turn(self, worker: _Worker) -> None:
        machine = worker.machine
        while not worker.busy:
            if worker.inbox:
                event = worker.inbox.popleft()
                self._perform(worker, machine.step(event, self.now, more=bool(worker.inbox)))
            elif (due := machine.wake_at(self.now)) <= self.now:
                self._perform(worker, machine.step(Tick(), self.now))
            else:
                worker.wake += 1
                self._at(due - self.now + 1e-6, partial(self._woken, worker, worker.wake))
                return

    def _woken(self, worker: _Worker, wake: int) -> None:
        if wake == worker.wake:
            self._turn(worker)

    def _perform(self, worker: _Worker, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Read() | SendBeat() | Swap():
                    self._ask(worker, effect)
                case OpenSlot(slot, epoch):
                    worker.inbox.append(Opened(slot, epoch))
                case StopSlot(slot):
                    worker.inbox.append(Drained(slot))
                case Refuse(reason):
                    raise AssertionError(reason)

    def _ask(self, worker: _Worker, effect: Read | SendBeat | Swap) -> None:
        worker.busy = True
        sent = self.now

        def served() -> None:
            event = self._serve(worker.store, effect, sent)
            self._at(worker.way, lambda: answered(event))

        def answered(event: Event) -> None:
            worker.busy = False
            worker.inbox.appendleft(event)
            self._turn(worker)

        self._at(worker.way, served)

    def _serve(self, store: MemoryStore, effect: Read | SendBeat | Swap, sent: float) -> Event:
        self.commands[type(effect).__name__] += 1
        match effect:
            case Read():
                reading = store.read()
                return ReadDone(reading.view, dict(reading.heartbeats), reading.store_id, self.now)
            case SendBeat(incarnation, announce):
                heartbeat = store.heartbeat(incarnation, announce=announce)
                if announce:
                    self._pass_signals_on(store)
                return BeatDone(
                    sent,
                    heartbeat.alive,
                    heartbeat.version,
                    heartbeat.generation,
                    heartbeat.store_id,
                    heartbeat.heartbeats,
                )
            case Swap(old, new, guard):
                done = store.swap(old, new, guard)
                self.refused += not done
                if done:
                    self._pass_signals_on(store)
                return SwapDone(sent, new, done)

    def _pass_signals_on(self, sender: MemoryStore) -> None:
        for worker in self.workers:
            if worker.store is not sender and (signals := worker.store.watch(0)):
                worker.inbox.extend(signals)
                self._after(worker.way, worker)


def _with(view: View, members: dict[str, Member]) -> View:
    return replace(view, members=members)


@dataclass(frozen=True, slots=True)
class Join:
    """Figures about one worker joining a crowd."""

    heartbeats: float
    """Heartbeats until every slot was open at its target."""
    versions: int
    swaps_lost: int
    slots_moved: int
    document: int
    """Size of the largest document on the way, in bytes."""


def join(members: int, slots: int) -> Join:
    """Let one worker join a settled crowd; return the figures."""
    crowd = Crowd(slots)
    crowd.found(members)
    crowd.run(2 * HEARTBEAT)
    before, lost = crowd.view, crowd.refused
    crowd.join("x")
    largest = len(crowd.document)

    def settled() -> bool:
        nonlocal largest
        largest = max(largest, len(crowd.document))
        return crowd.view.version > before.version and crowd.all_open()

    took = crowd.run(20 * HEARTBEAT, settled)
    after = crowd.view
    moved = sum(a != b for a, b in zip(before.owner, after.owner, strict=True))
    return Join(took / HEARTBEAT, after.version - before.version, crowd.refused - lost, moved, largest)


def start_together(members: int, slots: int) -> tuple[float, int]:
    """Start workers together under a new document; return the heartbeats from settling to all open, and swaps lost."""
    crowd = Crowd(slots)
    crowd.found_empty()
    for number in range(members):
        crowd.join(f"w{number}")
    took = crowd.run(60.0, lambda: crowd.now > SETTLE and crowd.all_open())
    return (took - SETTLE) / HEARTBEAT, crowd.refused


def idle_commands(members: int, slots: int, heartbeats: int = 3) -> float:
    """Return the number of requests that each worker of a settled crowd makes per heartbeat."""
    crowd = Crowd(slots)
    crowd.found(members)
    crowd.run(2 * HEARTBEAT)
    before = crowd.commands.total()
    crowd.run(heartbeats * HEARTBEAT)
    return (crowd.commands.total() - before) / members / heartbeats


def plan_seconds(members: int, slots: int) -> float:
    """Return how many seconds the plan after a join takes."""
    crowd = Crowd(slots)
    crowd.found(members)
    view = crowd.view
    joined = _with(view, {**view.members, "x": Member("x", "x-0")})
    begun = time.perf_counter()
    plan(joined)
    return time.perf_counter() - begun


def measure(members: int = 1000, slots: int = 16_384) -> Iterator[str]:
    """Yield a line for each figure."""
    yield f"plan of {members} members and {slots} slots: {plan_seconds(members, slots) * 1000:.0f} ms"
    joined = join(members, slots)
    yield f"a join: {joined}"
    heartbeats, lost = start_together(100, slots)
    yield f"100 workers at once: all open {heartbeats:.2f} heartbeats after settling, {lost} swaps lost"
    for crowd in (50, members):
        yield f"{crowd} idle workers: {idle_commands(crowd, slots):.2f} commands a heartbeat each"
