"""A worker's main process: its parts, its clock, its line to the store, and what befalls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeVar

from celery_sticky.ownership.events import Drained, Event, LeaveAsked, LoopAnswers, LoopSilent, Opened, OpenRefused
from celery_sticky.ownership.machine import Machine, MemberConfig, Phase
from celery_sticky.ownership.view import HAS_WORKER_QUEUE
from celery_sticky.slots import WorkerQueue
from simulator.courier import WatchedCourier
from simulator.keeper import ProcessJobs
from simulator.member import SimulatedLease, SteppedMember
from simulator.placer import SteppedPlacer
from simulator.pool import Pool
from simulator.scenario import Fault, Kind, Point
from simulator.terms import BROKER_GRACE, KEYSPACE, LOOP_TIMEOUT, MARGIN, SETTLE, TTL

if TYPE_CHECKING:
    from simulator.world import World

T = TypeVar("T")


class Process:
    """One start of a worker."""

    def __init__(self, world: World, name: str, birth: int, *, dead_incarnation: str = "") -> None:
        self.world, self.name = world, name
        self.origin = f"{name}.{birth}"
        # A stream of its own: what befalls others does not change its delays.
        self.rng = Random(world.scenario.seed * 1009 + birth)
        self._offset, self.rate = self.rng.uniform(0, 1e5), self.rng.uniform(0.98, 1.02)
        self.lease = SimulatedLease(self)
        self.pool = Pool(self, world.scenario.concurrency)
        self.courier = WatchedCourier(self)
        self.placer = SteppedPlacer(self, world.placed) if world.placed is not None else None
        self.jobs: ProcessJobs | None = ProcessJobs(self, world.jobs) if world.jobs is not None else None
        slots = self.jobs.slots if self.jobs is not None else self.courier
        self.member = SteppedMember(self, self._config(dead_incarnation), slots)
        self.alive = True
        self.failed = False
        """Whether anything has ever befallen it."""
        self.killed_as = ""
        """The incarnation as which it was killed, if nothing had befallen it before."""
        self.paused_until = self.frozen_until = 0.0
        """Until then its main process stands still; and the children of its pool."""
        self.hung_until = 0.0
        """Until then its loop starts nothing, and hears of no end."""
        self.store_cut_until = self.broker_cut_until = 0.0
        self._armed: list[Fault] = []
        if self.jobs is not None:
            self.jobs.start()

    def _config(self, dead_incarnation: str) -> MemberConfig:
        scenario = self.world.scenario
        place = scenario.names.find(self.name)
        return MemberConfig(
            name=self.name,
            origin=self.origin,
            slots=scenario.slots,
            hash=scenario.hash,
            ttl=TTL,
            margin=MARGIN,
            settle=SETTLE,
            broker_grace=BROKER_GRACE,
            epochs_outlive_store=not scenario.held,
            loop_timeout=LOOP_TIMEOUT,
            weight=scenario.weights[place] if place >= 0 else 1,
            attributes={HAS_WORKER_QUEUE: "1"} if self.world.placed is not None else {},
            dead_incarnation=dead_incarnation,
            jitter=self.rng.random(),
        )

    @property
    def clock(self) -> float:
        """Its own clock, in seconds."""
        return self._offset + self.rate * self.world.now

    @property
    def machine(self) -> Machine:
        """The state of its member."""
        return self.member.machine

    @property
    def held(self) -> frozenset[int]:
        """The slots that are open here or may be."""
        return self.member.held if self.alive else frozenset()

    @property
    def joined_as(self) -> str:
        """The incarnation of the newest membership: what running tasks rely on."""
        return self.member.joined_as

    @property
    def trusts(self) -> bool:
        """Whether it may act on what it owns, by its lease."""
        return self.lease.trusted(KEYSPACE)

    @property
    def taking_part(self) -> bool:
        """Whether it lives and has not left."""
        return self.alive and self.machine.phase is not Phase.LEFT

    def trust_ends_in(self) -> float:
        """Return after how many seconds of the world its trust ends, as it stands."""
        return (self.lease.until(KEYSPACE) - self.clock) / self.rate

    # -- steps ---------------------------------------------------------------------------------

    def outcome(self, do: Callable[[], None]) -> None:
        """Do something in the main process: now, when it wakes, or never."""
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, partial(self.outcome, do))
        else:
            do()

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Do something in the main process after `delay` seconds."""
        self.world.after(delay, partial(self.outcome, do))

    def in_loop(self, delay: float, do: Callable[[], None]) -> None:
        """Do something in the loop that runs tasks, after `delay` seconds or when it turns again."""
        self.later(delay, partial(self._turned, do))

    def _turned(self, do: Callable[[], None]) -> None:
        if self.world.now < self.hung_until:
            self.world.at(self.hung_until, partial(self.outcome, partial(self._turned, do)))
        else:
            do()

    def _look_at_the_loop(self) -> None:
        hangs = self.world.now < self.hung_until
        self.report(KEYSPACE, LoopSilent("0.0 it hangs") if hangs else LoopAnswers())

    def report(self, _: str, event: Event) -> None:
        """Tell the member, or the placer, what was seen: its thread takes that in a moment later."""
        self.world.note(self.origin, "%s", event)
        of_queue = isinstance(event, Opened | OpenRefused | Drained) and isinstance(event.slot, WorkerQueue)
        if self.placer is not None and of_queue:
            self.placer.report(event)
        elif self.jobs is None or not self.jobs.takes(event):
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell the member what was seen: its thread takes that in a moment later."""
        self.member.post(event, wakes=partial(self.later, self.rng.uniform(0, 0.01)))

    def learns_of_claims(self) -> None:
        """Its claims, or the lease that they rest on, may have changed."""
        if self.world.placed is not None:
            self.world.placed.witness.claims(self, self.world.processes)

    @property
    def claimed(self) -> frozenset[str]:
        """The keys that it may run as far as it knows."""
        return self.courier.consult(lambda state: state.claims.claimed(KEYSPACE))

    def ask_store(self, serve: Callable[[], T], *, answered: Callable[[T], None], failed: Callable[[], None]) -> None:
        """Have the store do something; go on in this process with what it answers, or without."""
        self.world.ask(
            self.rng,
            self.world.losses,
            self.world.now < self.store_cut_until,
            serve=serve,
            answered=lambda answer: self.outcome(partial(answered, answer)),
            failed=lambda: self.outcome(failed),
        )

    # -- what befalls it -----------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Have the fault happen at its point."""
        if fault.point is Point.NOW:
            self._suffer(fault)
        else:
            self._armed.append(fault)

    def disarm(self) -> None:
        """No fault waits any longer."""
        self._armed.clear()

    def passes(self, point: Point) -> bool:
        """Suffer what waits for this step; True if the process stands still now, or is dead."""
        if not self._armed:
            return False
        for fault in [fault for fault in self._armed if fault.point is point]:
            self._armed.remove(fault)
            self._suffer(fault)
        return not self.alive or self.world.now < self.paused_until

    def _suffer(self, fault: Fault) -> None:
        now = self.world.now
        until = now + fault.seconds
        self.world.note(self.origin, "FAULT: %s", fault)
        self.world.struck += 1
        if self.world.jobs is not None:
            self.world.jobs.struck(fault)
        if fault.kind is Kind.CRASH and not self.failed:
            self.killed_as = self.machine.incarnation
        self.failed = self.failed or fault.kind is not Kind.LEAVE
        match fault.kind:
            case Kind.PAUSE | Kind.FREEZE:
                self.paused_until = max(self.paused_until, until)
                self.courier.line.fall_silent(self.paused_until)
                if fault.kind is Kind.PAUSE:
                    self.frozen_until = max(self.frozen_until, until)
                    self.world.at(self.frozen_until, self.pool.thaw)
                    if self.jobs is not None:
                        self.world.at(self.frozen_until, self.jobs.supervisor.thaw)
            case Kind.CRASH:
                dead = self.machine.incarnation if fault.proof else ""
                self.die()
                self.world.after(fault.seconds, lambda: self.world.start(self.name, dead_incarnation=dead))
            case Kind.LEAVE:
                self.outcome(lambda: self.member.post(LeaveAsked()))
                self.world.after(fault.seconds, self._replace)
            case Kind.HANG:
                self.hung_until = max(self.hung_until, until)
                for look in (now + LOOP_TIMEOUT, until):
                    self.world.at(look, partial(self.outcome, self._look_at_the_loop))
            case Kind.CUT_STORE:
                self.store_cut_until = until
            case Kind.CUT_BROKER:
                self.broker_cut_until = until
                self.courier.line.fall_silent(until)
            case Kind.CUT:
                self.store_cut_until = self.broker_cut_until = until
                self.courier.line.fall_silent(until)

    def _replace(self) -> None:
        if self.alive:
            self.world.judge_leaving(self)
            self.failed = self.failed or self.machine.phase is not Phase.LEFT  # killed before it had left
            self.die()
        self.world.start(self.name)

    def die(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.world.note(self.origin, "is dead")
            self.alive = False
            self.member.close()
            if self.placer is not None:
                self.placer.close()
            if self.jobs is not None:
                self.jobs.die()
            self.courier.line.break_off()
            self.pool.die_with_parent()
