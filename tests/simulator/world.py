"""Workers, a store, a broker and time. Everything that happens is an event in one heap, so a world can be replayed."""

from __future__ import annotations

import heapq
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from celery_sticky.errors import StoreUnavailable
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.jobs.keeper.strikes import FORGET
from celery_sticky.message import Stamp
from celery_sticky.ownership import changes
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.queues.base import RunClaim, Tenure
from celery_sticky.slots import Slot
from celery_sticky.stores.base import Store
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from simulator.broker import Observed, ObservedHeld, WitnessedQueues
from simulator.invariants import Invariant, Violation, Witness
from simulator.jobs_world import JobsWorld
from simulator.ledger_witness import LedgerWitness
from simulator.placed import Placed
from simulator.pool import envelope
from simulator.process import Process
from simulator.scenario import TROUBLE, Fault, Kind, Scenario, Task
from simulator.terms import EPOCH, KEYSPACE, MARGIN, TIMEOUT, TTL

T = TypeVar("T")

RECOVERY = 120.0
"""Seconds after the last fault within which everything must be in order again."""
LOST = 3
"""Requests of a member without an answer, one after the other, that are a fault: its heartbeats may come too late."""
AFTER_WORK = (Invariant.NOT_DRAINED, Invariant.NOT_GIVEN_BACK, Invariant.OPEN_CLAIM)
"""What can only be in order when all work is done."""
LEAVES_IN = 3.0
"""Seconds within which a worker without running tasks must leave."""
COPIED_EVERY = 3.0
"""Maximum age in seconds of the data after a failover of the broker, or of the store in a placed keyspace."""
REMEMBERED = 300
"""Number of trace lines to keep."""


@dataclass(frozen=True, slots=True)
class Line:
    """A step, as a line of the trace."""

    at: float
    who: str
    form: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:8.3f}  {self.who:6}  {self.form % self.args}"


class World:
    """A scenario in progress."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.rng, self.now = scenario, Random(scenario.seed), 0.0
        self.losses, self.broker_losses = scenario.losses, scenario.broker_losses
        self.tasks = {(task.key, task.n): task for task in scenario.tasks}
        self.server = MemoryServer()
        self.server.clock = lambda: EPOCH + self.now
        placement = scenario.placement
        self.placed = Placed(self, placement) if placement is not None else None
        self.witness = self.placed.witness if self.placed is not None else Witness(scenario.slots)
        kind = ObservedHeld if scenario.held else Observed
        self.broker = kind(self.witness, self._has_message, lambda: self.now, placed=self.placed is not None)
        if scenario.claim_ahead is not None:
            self.witness.ledger = LedgerWitness(
                lambda: self.broker.ledgers[KEYSPACE], self._claim_of, self._explains_loss, scenario.claim_ahead
            )
        self.instruments = Instruments()
        """Of all workers."""
        self.processes: list[Process] = []
        self.events = self.struck = 0
        self.trace: deque[tuple[float, str, str, tuple[Any, ...]]] = deque(maxlen=REMEMBERED)
        self._names = dict.fromkeys(scenario.names)
        self._births = count()
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = count()
        self._out_until = 0.0
        self._beaten: dict[str, float] = {}
        self._evicted: set[str] = set()
        """The incarnations that were evicted."""
        self._store_lost = False
        """Whether the store ever lost data, or may have: then owners lose their slots without a handover."""
        self.jobs = JobsWorld(self, scenario.jobs) if scenario.jobs is not None else None
        self._plan()
        self._backup = self.server.snapshot()
        self._copy_broker()

    def _plan(self) -> None:
        scenario = self.scenario
        if scenario.founded:
            new = changes.fresh(
                slots=scenario.slots, hash=scenario.hash, generation=1, version=1, store_id=self.server.run_id, epochs=0
            )
            MemoryStore(self.server, KEYSPACE).swap(None, new)
        for name in scenario.names:
            self.after(self.rng.uniform(0, 2), partial(self.start, name))
        for fault in scenario.faults:
            self.at(fault.at, partial(self._strike, fault))
        for task in scenario.tasks:
            self.at(task.at, partial(self._send, task))
        if self.placed is not None:
            for pin in scenario.pins:
                self.at(pin.at, partial(self.placed.pin, pin))

        loses = any(fault.kind is Kind.FAIL_OVER for fault in scenario.faults)
        if loses and (self.placed is not None or self.jobs is not None):
            self.after(COPIED_EVERY, self._copy)

    def _copy(self) -> None:
        """Update the older data that a store fails over to."""
        self._backup = self.server.snapshot()
        if self.jobs is not None:
            self.jobs.copy()
        if self.now < TROUBLE:
            self.after(COPIED_EVERY, self._copy)

    def _copy_broker(self) -> None:
        """Update the older data that the broker fails over to."""
        if any(fault.kind is Kind.BROKER_BACK for fault in self.scenario.faults):
            self._broker_copy = self.broker.snapshot()
            self.witness.takes_copy()
            if self.now < TROUBLE:
                self.after(COPIED_EVERY, self._copy_broker)

    def _broker_goes_back(self) -> None:
        before = self.broker.bodies()
        self.broker.roll_back(self._broker_copy)
        self.witness.goes_back(before, self.broker.bodies(), self.broker.fences())
        for process in self.processes:
            process.outcome(process.courier.line.hang_up)

    # -- time ----------------------------------------------------------------------------------

    def at(self, time: float, do: Callable[[], Any]) -> None:
        """Do something at this time."""
        heapq.heappush(self._heap, (time, next(self._numbers), do))

    def after(self, delay: float, do: Callable[[], Any]) -> None:
        """Do something after `delay` seconds."""
        heapq.heappush(self._heap, (self.now + delay, next(self._numbers), do))

    def run(self, until: float) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, do = heapq.heappop(heap)
            do()
            self.events += 1
        self.now = until

    def note(self, who: str, form: str, *args: object) -> None:
        """Add a line to the trace."""
        self.trace.append((self.now, who, form, args))

    def lines(self, most: int) -> list[str]:
        """Return the newest lines of the trace."""
        return [str(Line(*line)) for line in list(self.trace)[-most:]]

    def live(self) -> World:
        """Live through the trouble, and see that everything comes into order after it.

        Raises:
            Violation: a promise was broken, at `now`.
        """
        with _silence():
            self.run(TROUBLE)
            self._end_trouble()
            quiet = max([TROUBLE, *self.scenario.ends])
            self.run(quiet)
            # A single worker that runs one task at a time may have to do all the work.
            work = sum(task.seconds * (len(task.ends) + 1) for task in self.scenario.tasks)
            while (disorder := self.disorder()) is not None:
                until = quiet + RECOVERY + work * (disorder[0] in AFTER_WORK)
                if self.jobs is not None and disorder[0] is Invariant.NOT_RUNNING:
                    until = max(until, self.jobs.witness.killed_at + FORGET)  # those that have done it wait
                if self.now > until:
                    raise Violation(*disorder)
                self.run(self.now + 0.5)
        return self

    def _end_trouble(self) -> None:
        self.losses = self.broker_losses = 0.0
        for process in self.processes:
            process.disarm()
        for name in self._names:
            self.start(name)

    # -- processes -----------------------------------------------------------------------------

    def start(self, name: str, *, dead_incarnation: str = "") -> None:
        """Start a worker, unless one with this name is alive."""
        former = [process for process in self.processes if process.name == name]
        if not any(process.alive for process in former) and not (former and name in self.scenario.away):
            process = Process(self, name, next(self._births), dead_incarnation=dead_incarnation)
            self.note(process.origin, "starts")
            self.processes.append(process)
            process.member.start()

    def _strike(self, fault: Fault) -> None:
        if fault.victim:
            for process in self.processes:
                if process.name == fault.victim and process.taking_part:
                    process.strike(fault)
            return
        self.struck += 1
        if self.jobs is not None:
            self.jobs.struck(fault)
        self.note("world", "FAULT: %s", fault)
        match fault.kind:
            case Kind.OUTAGE:
                self._out_until = max(self._out_until, self.now + fault.seconds)
            case Kind.DEAF:
                self.server.cut()
                if self.jobs is not None:
                    self.jobs.server.cut()
            case Kind.JOIN:
                for number in range(fault.number):
                    self._names[f"j{number}"] = None
                    self.after(self.rng.uniform(0, 0.2), partial(self.start, f"j{number}"))
            case Kind.WIPE:
                self.server.wipe()
                if self.jobs is not None:
                    self.jobs.lose(all_of_it=True)
            case Kind.RESTART:
                self.server.restart()
                if self.jobs is not None:
                    self.jobs.server.restart()
            case Kind.FAIL_OVER:
                self.server.roll_back(self._backup)
                self.server.restart()
                if self.jobs is not None:
                    self.jobs.lose(all_of_it=False)
            case Kind.BROKEN:
                self.broker.unusable[fault.number] = self.now + fault.seconds
            case Kind.BROKER_BACK:
                self._broker_goes_back()
        if fault.kind in (Kind.WIPE, Kind.RESTART, Kind.FAIL_OVER):
            self._store_lost = True
            self._backup = self.server.snapshot()
            if self.jobs is not None:
                self.jobs.copy()
            self._look_up()

    # -- a request and its answer --------------------------------------------------------------

    def ask(
        self,
        rng: Random,
        losses: float,
        cut: bool,
        *,
        serve: Callable[[], T],
        answered: Callable[[T], None],
        failed: Callable[[], None],
    ) -> None:
        """Carry a request to a server, which calls `serve`, and its answer back; or lose one of them."""
        luck = rng.random()
        if cut or luck < losses / 3:
            self.after(TIMEOUT, failed)
        elif luck < losses * 2 / 3:  # the request arrives in time, its answer does not
            self.after(rng.uniform(0, TIMEOUT), serve)
            self.after(TIMEOUT, failed)
        elif luck < losses:  # the request arrives when nobody waits for it any more
            self.after(TIMEOUT + rng.uniform(0, 2 * TIMEOUT), serve)
            self.after(TIMEOUT, failed)
        else:
            way_back = rng.uniform(0, 0.02)
            self.after(rng.uniform(0, 0.02), lambda: self._answer(way_back, serve(), answered))

    def _answer(self, delay: float, answer: T, answered: Callable[[T], None]) -> None:
        self.after(delay, lambda: answered(answer))

    # -- the store's side ----------------------------------------------------------------------

    def serve(self, request: Callable[[Store], object], store: Store) -> object:
        """Carry out a request at the store; return its answer, or the error that the worker gets."""
        if self.store_is_away:
            return StoreUnavailable("away")
        try:
            return request(store)
        except StoreUnavailable as error:  # it has restarted since the client subscribed
            return error

    def beats(self, incarnation: str) -> None:
        """Note that a heartbeat was counted."""
        self._beaten[incarnation] = self.now

    def swapped(self, writer: Process, old: View | None, new: View) -> None:
        """Note, and judge, that the document was replaced."""
        self.note(writer.origin, "has written version %s", new.version)
        self._look_up()
        if self.jobs is not None and (old is None or old.active != new.active):
            self.jobs.members_change()
        self._judge(writer, old, new)

    @property
    def store_is_away(self) -> bool:
        """Whether the store is down now."""
        return self.now < self._out_until

    def _look_up(self) -> None:
        if self.placed is not None:
            self.placed.look()

    def pass_signals_on(self) -> None:
        """Bring the signals of the store to the workers."""
        for process in self.processes:
            if not process.alive or not process.member.subscribed:
                continue
            try:
                signals = process.member.store.watch(0)
            except StoreUnavailable:
                process.outcome(process.member.cut)
                continue
            for signal in signals:
                deaf = self.scenario.deaf or self.now < process.store_cut_until
                if not deaf and process.rng.random() >= self.losses:
                    process.later(process.rng.uniform(0, 0.1), partial(process.member.hear, signal))

    def _judge(self, writer: Process, old: View | None, new: View) -> None:
        for member in new.members.values():
            self._beaten.setdefault(member.incarnation, self.now)
        self.witness.swaps(old, new)
        if old is None or old.generation != new.generation:
            return
        given = {slot for slot in old.owned_by(writer.name) if new.owner[slot] != writer.name}
        if untold := given & writer.member.application.slots:
            raise Violation(Invariant.UNTOLD_LOSS, f"{writer.origin} has given away slots {sorted(untold)}")
        for name, member in old.members.items():
            if name not in new.members and member.state is not MemberState.LEAVING and writer.name != name:
                self.witness.evicted.append(name)
                self._evicted.add(member.incarnation)
                self._judge_eviction(name, member.incarnation)

    def _judge_eviction(self, name: str, incarnation: str) -> None:
        if self.now - self._beaten[incarnation] < (TTL + MARGIN) * 0.97:
            raise Violation(Invariant.NEEDLESS_EVICTION, f"{incarnation} was evicted too early")
        # A joining swap may arrive after its process has given it up: then no process has that incarnation.
        for process in self.processes:
            met_a_fault = process.failed or process.member.lost_in_a_row >= LOST
            if process.machine.incarnation == incarnation and process.taking_part and not met_a_fault:
                raise Violation(Invariant.NEEDLESS_EVICTION, f"{incarnation} was evicted and met no fault")

    def judge_leaving(self, process: Process) -> None:
        """Check that a worker being killed after it was told to leave did not have enough time to leave."""
        scenario, pool = self.scenario, process.pool
        others = [fault for fault in scenario.faults if fault.kind is not Kind.LEAVE]
        calm = scenario.jobs is None and not (others or scenario.losses or scenario.broker_losses)
        idle = not pool.busy and self.now - pool.ended_at > LEAVES_IN
        if calm and idle and not process.failed and process.machine.phase is not Phase.LEFT:
            raise Violation(Invariant.NOT_LEFT, f"{process.origin} has not left")

    # -- the broker's side ---------------------------------------------------------------------

    def connect(self) -> WitnessedQueues:
        """Return a new connection to the broker."""
        return self.broker.connect()

    def _send(self, task: Task) -> None:
        self._send_copy(task, 0)
        for copy, delay in enumerate(task.copies, 1):
            self.after(delay, partial(self._send_copy, task, copy))

    def _send_copy(self, task: Task, copy: int) -> None:
        if self.placed is not None:
            self.placed.send(task, copy)
        else:
            self.publish(task, task.key % self.scenario.slots, self.now, copy)

    def publish(self, task: Task, slot: Slot, known_at: float, copy: int) -> None:
        """Publish a copy of a message whose sender read the placement of its key at `known_at` or later."""
        due = self.now + EPOCH + task.countdown if task.countdown else 0.0
        body = envelope(task.key, task.n, due=due, stamp=self.stamp(task.key), copy=0 if task.identical else copy)
        name = f"key {task.key} #{task.n}" + (f" copy {copy}" if copy else "")
        if self.placed is not None:
            self.note("sender", "%s goes to queue %s", name, slot)
        self.witness.publishes(body, slot, name, waits=due > 0, key=str(task.key), known_at=known_at)
        self.broker.publish((KEYSPACE, slot), body, task.priority)

    def stamp(self, key: int) -> Stamp | None:
        """Return the stamp that a sender writes on a message; None if the keyspace is not placed."""
        return self.placed.stamp(key) if self.placed is not None else None

    def claim_of(self, headers: Mapping[str, Any]) -> RunClaim | None:
        """Return the run of a message as the ledger names it; None: its task does not use the ledger."""
        return self.tasks[int(headers["key"]), int(headers["n"])].claim(int(headers["retries"]))

    def _claim_of(self, body: bytes) -> RunClaim | None:
        return self.claim_of(json.loads(body)["headers"])

    def _explains_loss(self, process: Process, tenure: Tenure) -> bool:
        """Return whether a fault explains that a worker lost a slot and did not take back its claims there."""
        lost_membership = tenure.incarnation in self._evicted or tenure.incarnation != process.machine.incarnation
        killed = not process.alive and process.machine.phase is not Phase.LEFT
        no_broker = process.courier.gave_up or process.courier.down_since is not None
        befell = killed or lost_membership or no_broker
        return befell or self._store_lost or tenure.slot in self.broker.unusable

    def _has_message(self, slot: Slot) -> None:
        for process in self.processes:
            process.courier.line.hear((KEYSPACE, slot))

    # -- what must hold in the end -------------------------------------------------------------

    def disorder(self) -> tuple[Invariant, str] | None:
        """Return what is not in order yet."""
        living = [process for process in self.processes if process.taking_part]
        views = {(v.generation, v.version) for p in living if (v := p.machine.view) is not None}
        view = living[0].machine.view if living else None
        if view is None or len(views) != 1 or not all(process.trusts for process in living):
            return Invariant.NOT_SETTLED, f"members have versions {sorted(views)}, or do not trust their lease"
        if set(view.members) != {process.name for process in living} or not view.settled:
            return Invariant.NOT_SETTLED, f"version {view.version} has {sorted(view.members)}, and is not settled"
        for process in living:
            if (text := self._unowned(process, view)) is not None:
                return Invariant.NOT_OWNED, text
        if left := self.witness.left:
            return Invariant.NOT_DRAINED, f"{left} are left"
        if self.witness.ledger is not None and (found := self.witness.ledger.disorder()) is not None:
            return found
        if self.jobs is not None and (found := self.jobs.disorder()) is not None:
            return found
        return self.placed.disorder(living) if self.placed is not None else None

    def _unowned(self, process: Process, view: View) -> str | None:
        if view.unowned:
            return f"slots {sorted(view.unowned)} have no owner"
        mine = view.owned_by(process.name)
        if process.machine.slots != dict.fromkeys(mine, SlotState.OPEN):
            return f"{process.origin} owns {sorted(mine)} and has {dict(process.machine.slots)}"
        for slot in mine:
            fence = self.broker.slot(KEYSPACE, slot).fence
            if fence is None or (fence.epoch, fence.incarnation) != (view.epoch[slot], process.machine.incarnation):
                return f"slot {slot} is {process.origin}'s, and fenced for {fence}"
        return None


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the courier's log, which is long when nothing works."""
    logger = logging.getLogger("celery_sticky")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
