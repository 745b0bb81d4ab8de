"""Several members, one store, one broker and bad luck: never two owners, and in the end everything is owned and open.

A world is made from a seed alone: time is virtual, every delay and fault is drawn from one random generator. To look at
a failure, run `World(seed).live()` with the seed it names.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.ownership.events import (
    BeatDone,
    BrokerDown,
    BrokerUp,
    CloseSlot,
    Drained,
    Effect,
    Event,
    LeaveAsked,
    Opened,
    OpenRefused,
    OpenSlot,
    Read,
    ReadDone,
    Refuse,
    SendBeat,
    StopSlot,
    StoreFailed,
    Swap,
    SwapDone,
    Tick,
)
from celery_sticky.ownership.holdings import Holdings, SlotState
from celery_sticky.ownership.machine import Machine, Phase, Terms
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.ownership.watches import Watches
from celery_sticky.queues.base import Tenure
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.stores.memory import MemoryServer, MemoryStore

KEYSPACE = "ks"
SLOTS = 6
NAMES = "abc"
TTL, MARGIN, SETTLE, GRACE = 10.0, 2.0, 3.0, 8.0
TIMEOUT = 2.0
"""Seconds a client waits for the store."""
TROUBLE = 70.0
"""Seconds during which faults happen."""
RECOVERY = 120.0
"""Seconds after the last fault by which everything is in order again."""
LONGEST_TASK = 4.0
HELD = (SlotState.OPENING, SlotState.OPEN, SlotState.STOPPING)


class Violation(AssertionError):
    """The world has seen what must not be."""


class Process:
    """A worker process: a machine, its inbox, its clock, its store client and its courier."""

    def __init__(self, world: World, name: str, *, dead_incarnation: str = "") -> None:
        self.world, self.name, self.rng = world, name, world.rng
        self.origin = f"{name}.{next(world.births)}"
        self._offset, self._rate = self.rng.uniform(0, 1e5), self.rng.uniform(0.98, 1.02)
        terms = Terms(
            name=name,
            origin=self.origin,
            slots=SLOTS,
            hash="h",
            ttl=TTL,
            margin=MARGIN,
            settle=SETTLE,
            broker_grace=GRACE,
            dead_incarnation=dead_incarnation,
            jitter=self.rng.random(),
        )
        self.machine = Machine(terms, self.clock)
        self.inbox: deque[Event] = deque()
        self.store = MemoryStore(world.server, KEYSPACE)
        self.courier = Courier(self)
        self.alive = True
        self.failed = False
        """Whether anything has ever befallen it."""
        self.paused_until = self.cut_until = 0.0
        self.pauses_next = 0.0
        """Seconds for which it stands still when it next waits for the store."""
        self._busy = False
        self._wake = 0

    @property
    def clock(self) -> float:
        return self._offset + self._rate * self.world.now

    @property
    def trusts(self) -> bool:
        return self.alive and self.machine.trusts(self.clock)

    def post(self, event: Event) -> None:
        self.inbox.append(event)
        self.turn()

    def turn(self) -> None:
        """Do what there is to do, unless it waits for the store, or stands still."""
        while self.alive and not self._busy and self.world.now >= self.paused_until:
            if self.inbox:
                self._step(self.inbox.popleft())
            elif (due := self.machine.wake_at(self.clock)) <= self.clock:
                self._step(Tick())
            else:
                self._wake += 1
                self.world.after((due - self.clock) / self._rate + 1e-6, partial(self._woken, self._wake))
                return

    def _woken(self, wake: int) -> None:
        if wake == self._wake:
            self.turn()

    def _step(self, event: Event) -> None:
        for effect in self.machine.step(event, self.clock):
            match effect:
                case Read() | SendBeat() | Swap():
                    self._ask(effect)
                case OpenSlot(slot, epoch, incarnation):
                    self.courier.open(slot, epoch, incarnation)
                case StopSlot(slot):
                    self.courier.stop(slot)
                case CloseSlot(slot):
                    self.courier.close(slot)
                case Refuse(reason):
                    raise Violation(f"{self.origin} was refused: {reason}")
        self.world.check_owners()

    def _ask(self, effect: Read | SendBeat | Swap) -> None:
        self._busy = True
        sent, rng, after = self.clock, self.rng, self.world.after
        if self.pauses_next:
            self.pause(self.pauses_next)
            self.pauses_next = 0.0
        luck = rng.random()
        if self.world.now < self.cut_until or luck < self.world.losses / 3:
            after(TIMEOUT, lambda: self._answered(StoreFailed(sent)))
        elif luck < self.world.losses * 2 / 3:  # it arrives in time, its answer does not
            after(rng.uniform(0, TIMEOUT), lambda: self.world.serve(self, effect, sent))
            after(TIMEOUT, lambda: self._answered(StoreFailed(sent)))
        elif luck < self.world.losses:  # it arrives when nobody waits for it any more
            after(TIMEOUT + rng.uniform(0, 2 * TIMEOUT), lambda: self.world.serve(self, effect, sent))
            after(TIMEOUT, lambda: self._answered(StoreFailed(sent)))
        else:
            way_back = rng.uniform(0, 0.05)
            after(
                rng.uniform(0, 0.05),
                lambda: self._later(way_back, self.world.serve(self, effect, sent)),
            )

    def _later(self, delay: float, event: Event) -> None:
        self.world.after(delay, lambda: self._answered(event))

    def _answered(self, event: Event) -> None:
        self._busy = False
        self.inbox.appendleft(event)
        self.turn()

    # -- what befalls it -----------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        self.failed = True
        self.paused_until = self.world.now + seconds
        self.world.after(seconds, self.turn)

    def cut_off(self, seconds: float) -> None:
        self.failed = True
        self.cut_until = self.world.now + seconds

    def crash(self) -> None:
        self.alive = False
        self.failed = True
        self.store.close()


class Courier:
    """Opens slots at the broker, late; drains them when their task has ended."""

    def __init__(self, process: Process) -> None:
        self.process, self.world = process, process.world
        self.queues = MemoryQueues(self.world.broker)
        self.opening: dict[int, Tenure] = {}
        self.tenures: dict[int, Tenure] = {}
        self.stopping: set[int] = set()
        self.counts = count(1)
        self.up = True

    def open(self, slot: int, epoch: int, incarnation: str) -> None:
        self.stopping.discard(slot)
        tenure = self.opening[slot] = Tenure(KEYSPACE, slot, epoch, incarnation, next(self.counts))
        self.world.after(self.process.rng.uniform(0, 0.3), lambda: self._open(tenure))

    def _open(self, tenure: Tenure) -> None:
        slot = tenure.slot
        if not self.process.alive or not self.up or self.opening.get(slot) is not tenure:
            return
        del self.opening[slot]
        try:
            self.queues.open(tenure, ())
        except Fenced as fenced:
            self.tenures.pop(slot, None)
            self.report(OpenRefused(slot, fenced.epoch))
            return
        self.tenures[slot] = tenure
        self.report(Opened(slot, tenure.epoch))
        self.world.notice(tenure)

    def stop(self, slot: int) -> None:
        self.opening.pop(slot, None)
        self.stopping.add(slot)
        self.world.after(self.process.rng.choice((0, 0.01, 1.0)) * LONGEST_TASK, lambda: self._drain(slot))

    def _drain(self, slot: int) -> None:
        if self.up and slot in self.stopping:
            self.stopping.discard(slot)
            self.tenures.pop(slot, None)
            self.report(Drained(slot))

    def close(self, slot: int) -> None:
        self.opening.pop(slot, None)
        self.tenures.pop(slot, None)
        self.stopping.discard(slot)

    def look(self, slot: int) -> None:
        """A fetch finds whether the fence is still ours; if not, the slot is opened anew to learn whose it is."""
        tenure = self.tenures.get(slot)
        if tenure is not None and self.world.broker.slot(KEYSPACE, slot).fence != tenure:
            self.open(slot, tenure.epoch, tenure.incarnation)

    def report(self, event: Event) -> None:
        self.world.after(self.process.rng.uniform(0, 0.05), lambda: self.process.post(event))

    def down(self, seconds: float) -> None:
        self.up = False
        self.report(BrokerDown())
        self.world.after(seconds, self._come_back)

    def _come_back(self) -> None:
        self.up = True
        for slot, tenure in (self.tenures | self.opening).items():
            if slot not in self.stopping:
                self.open(slot, tenure.epoch, tenure.incarnation)
        for slot in tuple(self.stopping):
            self._drain(slot)
        self.report(BrokerUp())


class World:
    """Processes, store, broker and time."""

    def __init__(self, seed: int, *, faults: bool = True, losses: float = 0.03, deaf: bool = False) -> None:
        self.seed, self.rng, self.now = seed, Random(seed), 0.0
        self.losses, self.deaf = losses, deaf
        self.births = count()
        self.server = MemoryServer()
        self.broker = MemoryBroker()
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = count()
        self._out_until = 0.0
        self._backup = self.server.snapshot()
        self._beaten: dict[str, float] = {}
        self.evicted: list[str] = []
        self.processes: list[Process] = []
        self.fates: list[str] = []
        for name in NAMES:
            self.after(self.rng.uniform(0, 2), partial(self.start, name))
        if faults:
            for _ in range(self.rng.randint(1, 8)):
                self.after(self.rng.uniform(5, TROUBLE), self.strike)

    def after(self, delay: float, do: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), do))

    def run(self, until: float, wanted: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
            if wanted():
                return
        self.now = until

    def live(self) -> World:
        """Live through the trouble, and see that everything comes into order after it."""
        try:
            self.run(TROUBLE)
            self.losses = 0.0
            for name in NAMES:
                if not any(p.name == name and p.alive for p in self.processes):
                    self.start(name)
            # The last faults may last for some time yet.
            self.run(TROUBLE + 30 + RECOVERY, lambda: self.now > TROUBLE + 30 and self.in_order())
            if not self.in_order():
                raise Violation("not in order in the end")
        except Violation as violation:
            raise Violation(f"seed {self.seed}, at {self.now:.2f}: {violation} (faults: {self.fates})") from violation
        return self

    # -- processes -----------------------------------------------------------------------------

    def start(self, name: str, *, dead_incarnation: str = "") -> None:
        if not any(p.name == name and p.alive for p in self.processes):
            self.processes.append(Process(self, name, dead_incarnation=dead_incarnation))
            self.processes[-1].turn()

    @property
    def living(self) -> list[Process]:
        return [p for p in self.processes if p.alive and p.machine.phase is not Phase.LEFT]

    # -- the store's side ----------------------------------------------------------------------

    def serve(self, process: Process, effect: Effect, sent: float) -> Event:
        """Do at the server what was asked for."""
        if self.now < self._out_until:
            return StoreFailed(sent)
        store = process.store
        event: Event
        match effect:
            case SendBeat(incarnation, announce):
                beat = store.beat(incarnation, announce=announce)
                if beat.alive:
                    self._beaten[incarnation] = self.now
                event = BeatDone(sent, beat.alive, beat.version, beat.generation, beat.store_id)
            case Swap(old, new, guard):
                done = store.swap(old, new, guard)
                if done:
                    self._judge(process, old, new)
                event = SwapDone(sent, new, done)
            case _:
                reading = store.read()
                event = ReadDone(reading.view, dict(reading.beats), reading.store_id, 1e6 + self.now)
        self._pass_signals_on()
        return event

    def _pass_signals_on(self) -> None:
        for process in self.processes:
            if not process.alive:
                continue
            try:
                signals = process.store.watch(0)
            except StoreUnavailable:
                process.post(StoreFailed(process.clock))
                continue
            for signal in signals:
                if self.deaf or self.now < process.cut_until or self.rng.random() < self.losses:
                    continue
                self.after(self.rng.uniform(0, 0.2), partial(process.post, signal))

    def _judge(self, writer: Process, old: View | None, new: View) -> None:
        for member in new.members.values():
            self._beaten.setdefault(member.incarnation, self.now)
        if old is None or old.generation != new.generation:
            return
        if any(after < before for before, after in zip(old.epoch, new.epoch, strict=True)):
            raise Violation("an epoch fell")
        for name, member in old.members.items():
            left = member.state is MemberState.LEAVING or writer.name == name
            if name in new.members or left:
                continue
            self.evicted.append(name)
            if self.now - self._beaten[member.incarnation] < (TTL + MARGIN) * 0.97:
                raise Violation(f"{name} was evicted too early")
            # A joining swap may arrive when its process has given it up: that incarnation is nobody.
            if any(
                p.machine.incarnation == member.incarnation and p in self.living and not p.failed
                for p in self.processes
            ):
                raise Violation(f"{name} was evicted without need")

    def notice(self, tenure: Tenure) -> None:
        """A fence has moved: whoever fetches there finds out."""
        for process in self.processes:
            self.after(self.rng.uniform(0, 1.0), partial(process.courier.look, tenure.slot))

    # -- what must always hold, and what must in the end ---------------------------------------

    def check_owners(self) -> None:
        owners: dict[int, str] = {}
        for process in self.processes:
            if process.trusts:
                for slot, state in process.machine.slots.items():
                    if state in HELD and owners.setdefault(slot, process.origin) != process.origin:
                        raise Violation(f"slot {slot} is held by {owners[slot]} and {process.origin}")

    def in_order(self) -> bool:
        views = {(v.generation, v.version) for p in self.living if (v := p.machine.view) is not None}
        if len(views) != 1 or not all(p.trusts for p in self.living):
            return False
        view = self.living[0].machine.view
        assert view is not None
        if not view.settled or view.unowned or set(view.members) != {p.name for p in self.living}:
            return False
        for process in self.living:
            mine = view.owned_by(process.name)
            if process.machine.slots != dict.fromkeys(mine, SlotState.OPEN):
                return False
            for slot in mine:
                fence = self.broker.slot(KEYSPACE, slot).fence
                held = (view.epoch[slot], process.machine.incarnation)
                if fence is None or (fence.epoch, fence.incarnation) != held:
                    return False
        return True

    # -- faults --------------------------------------------------------------------------------

    def strike(self) -> None:
        faults = [self.fault_pause, self.fault_crash, self.fault_cut, self.fault_broker, self.fault_leave,
                  self.fault_outage, self.fault_signals, self.fault_store]  # fmt: skip
        fault = self.rng.choices(faults, (4, 4, 4, 2, 2, 2, 1, 2))[0]
        if self.living:
            self.fates.append(f"{fault.__name__} at {self.now:.1f}")
            fault(self.rng.choice(self.living))

    def fault_pause(self, process: Process) -> None:
        seconds = self.rng.choice((1, 5, 9, 13, 25)) * self.rng.uniform(0.8, 1.2)
        if self.rng.random() < 0.5:
            process.pause(seconds)
        else:
            process.pauses_next = seconds

    def fault_crash(self, process: Process) -> None:
        dead = process.machine.incarnation if self.rng.random() < 0.5 else ""
        process.crash()
        self.after(self.rng.choice((0.1, 3, 20)), lambda: self.start(process.name, dead_incarnation=dead))

    def fault_cut(self, process: Process) -> None:
        process.cut_off(self.rng.choice((3, 8, 12, 25)) * self.rng.uniform(0.8, 1.2))

    def fault_broker(self, process: Process) -> None:
        if process.courier.up:
            process.courier.down(self.rng.uniform(1, 25))

    def fault_leave(self, process: Process) -> None:
        process.post(LeaveAsked())
        self.after(self.rng.uniform(5, 20), lambda: self._replace(process))

    def _replace(self, process: Process) -> None:
        process.alive = process.alive and process.machine.phase is not Phase.LEFT
        if process.alive:
            process.crash()  # it was killed before it had left
        self.start(process.name)

    def fault_outage(self, _: Process) -> None:
        self._out_until = self.now + self.rng.choice((1, 4, 10, 20)) * self.rng.uniform(0.8, 1.2)

    def fault_signals(self, _: Process) -> None:
        self.server.cut()

    def fault_store(self, _: Process) -> None:
        match self.rng.choice(("wipe", "restart", "fail over")):
            case "wipe":
                self.server.wipe()
            case "restart":
                self.server.restart()
            case _:  # to a replica that lags behind
                backup = self._backup
                self.server.roll_back(backup)
                self.server.restart()
        self._backup = self.server.snapshot()


SEEDS, BATCH = 400, 40


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_whatever_happens_no_slot_has_two_owners_and_in_the_end_all_are_owned_and_open(first: int) -> None:
    """Guards: trust, eviction, gone, a lost or rolled-back store; refused openings; lost swaps."""
    for seed in range(first, first + BATCH):
        World(seed).live()


def test_without_faults_nobody_is_evicted_and_a_lost_answer_now_and_then_is_no_fault() -> None:
    for seed in range(12):
        world = World(seed, faults=False)
        world.live()
        assert world.evicted == []


def test_without_any_signal_all_of_it_holds_too() -> None:
    """Signals are hints: a lost one costs one heartbeat."""
    for seed in range(1000, 1024):
        World(seed, deaf=True).live()


# -- The rules matter: without each of them a violation is found --------------------------------


@contextmanager
def changed(monkeypatch: pytest.MonkeyPatch, part: type = Machine, **methods: Any) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name, method in methods.items():
            patch.setattr(part, name, method)
        yield


def violation(seeds: range, text: str, **options: Any) -> str | None:
    """Live until the first violation that says `text`."""
    for seed in seeds:
        try:
            World(seed, **options).live()
        except Violation as found:
            if text in str(found):
                return str(found)
    return None


def test_without_an_end_of_trust_two_owners_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with changed(monkeypatch, trusts=lambda self, now: self.phase is Phase.IN):
        assert violation(range(200), "is held by")


def test_with_trust_counted_from_the_answer_two_owners_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    on_beat = Machine._on_beat

    def from_the_answer(self: Machine, event: BeatDone, now: float, effects: list[Effect]) -> None:
        on_beat(self, replace(event, sent=now + MARGIN), now, effects)

    with changed(monkeypatch, _on_beat=from_the_answer):
        assert violation(range(300), "is held by")


def test_with_less_patience_an_eviction_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with changed(monkeypatch, _patience=property(lambda self: TTL / 2)):
        assert violation(range(200), "too early")
        assert violation(range(200), "is held by")


def test_without_a_guard_a_needless_eviction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with changed(monkeypatch, Watches, guard=lambda self, members: {}):
        assert violation(range(200), "too early", deaf=True)


def test_without_restarted_stopwatches_a_needless_eviction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def touch(self: Machine, now: float) -> None:
        self._contact = now

    with changed(monkeypatch, _touch=touch):
        assert violation(range(600), "without need")


def test_with_trust_renewed_by_the_answer_gone_two_owners_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    on_beat = Machine._on_beat

    def revived(self: Machine, event: BeatDone, now: float, effects: list[Effect]) -> None:
        on_beat(self, replace(event, alive=True), now, effects)

    with changed(monkeypatch, _on_beat=revived):
        assert violation(range(200), "is held by")


def test_with_a_fresh_document_at_once_two_owners_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    on_store_lost = Machine._on_store_lost

    def at_once(self: Machine, view: View | None, event: ReadDone, now: float, effects: list[Effect]) -> None:
        self.store_lost_since = float("-inf")
        on_store_lost(self, view, event, now, effects)

    with changed(monkeypatch, _on_store_lost=at_once):
        assert violation(range(300), "is held by")


def test_without_outbidding_a_fence_a_slot_that_stays_shut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with changed(monkeypatch, Holdings, refused=lambda self, slot, fence: False):
        assert violation(range(300), "not in order")


def test_a_slot_given_away_before_it_has_drained_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with changed(monkeypatch, Holdings, given=lambda self, view: view.giving(self._name)):
        assert violation(range(200), "is held by")
