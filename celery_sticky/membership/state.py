"""The state of a member and its turns: it steps `ownership.machine`, asks the store, and tells the worker.

No thread, no clock, no client: see `flow` for the requests. The machine decides; here its effects are carried out in
order, and answers become events. What others have done never overtakes a report from this worker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from celery_sticky.errors import KeyspaceMismatch, NameTaken, RefusedToStart, StoreUnavailable
from celery_sticky.keyspace import how_to_agree
from celery_sticky.membership.flow import Flow, Snapshot, Surroundings
from celery_sticky.membership.owner_changes import OwnerChanges
from celery_sticky.membership.store_requests import StoreRequests
from celery_sticky.ownership.events import (
    CloseSlot,
    Effect,
    Event,
    Evicted,
    LoseSlots,
    Opened,
    OpenSlot,
    Read,
    Refuse,
    Say,
    SendBeat,
    StopJobs,
    StopSlot,
    StoreEffect,
    StoreFailed,
    Swap,
    Tick,
    WasEvicted,
)
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Machine, Phase
from celery_sticky.ownership.view import View
from celery_sticky.stores.flow import Aside, Pause, Watch

logger = logging.getLogger("celery_sticky.member")

LONGEST_WATCH = 30.0
BROKEN_PAUSE = 0.1
"""Seconds between attempts to listen to a store that does not answer."""


class MembershipState:
    """One worker's membership in one keyspace. `inbox` takes events from any thread."""

    def __init__(self, here: Surroundings, machine: Machine, inbox: deque[Event]) -> None:
        self.machine, self.snapshot = machine, Snapshot()
        self.joined_as = ""
        """The incarnation of the newest membership: what running tasks rely on."""
        self.membership = 0
        """Its number."""
        self._here, self._inbox = here, inbox
        self._changes = OwnerChanges(here.instruments, machine.config.name, here.keyspace)
        self._requests = StoreRequests(here, machine.config.name, self._without_store)
        self._subscribed = False
        self._gained: set[int] = set()
        self._fresh: set[int] = set()
        """Those that the application has not been told of yet."""

    def turn(self) -> Flow[None]:
        """Do what there is to do, then listen until there may be more."""
        try:
            if not self._subscribed:
                self._subscribed = True  # or will be, with the next watch that works
                yield Watch(0.0)  # signals sent after our first read are then received
            yield from self._take_in()
            yield from self._listen()
        except StoreUnavailable as error:
            self._requests.failed(error)
            self._inbox.appendleft(StoreFailed(self._here.clock()))
            yield from self._take_in()  # what needs no store is not delayed
            yield Pause(BROKEN_PAUSE)

    def _take_in(self) -> Flow[None]:
        while self._inbox:
            yield from self._step(self._inbox.popleft())
        yield from self._announce_gains()
        self._changes.tell_gains(self._here.clock(), opening=self._opening)

    def _listen(self) -> Flow[None]:
        now = self._here.clock()
        pause = self.machine.wake_at(now) - now
        if pause > 0 and self._requests.silent and self.machine.heartbeat_due(now + pause):
            # To listen means to subscribe, which may take a timeout: the heartbeat goes first.
            yield Pause(min(pause, BROKEN_PAUSE))
            return
        if pause > 0:
            self._inbox.extend((yield from self._requests.watch(min(pause, LONGEST_WATCH))))
        if not self._inbox:
            yield from self._step(Tick())

    def _step(self, event: Event) -> Flow[None]:
        following: Event | None = event
        while following is not None:
            request = yield from self._advance(following)
            following = (yield from self._ask(request)) if request is not None else None

    def _ask(self, request: StoreEffect) -> Flow[Event]:
        joins = isinstance(request, Swap) and self._joins(request.new)
        return self._requests.ask(request, self.machine.incarnation if joins else "")

    def _advance(self, event: Event) -> Flow[StoreEffect | None]:
        """Take a step and carry out its effects; return the one for the store, which is the last."""
        if isinstance(event, Opened):
            self._note_opened(event)
        effects = self.machine.step(event, self._here.clock(), more=bool(self._inbox))
        self._publish()
        request = None
        for effect in effects:
            match effect:
                case Read() | SendBeat() | Swap():
                    request = effect
                case LoseSlots(slots):
                    yield from self._lose(slots, given=True)
                case _:
                    self._perform(effect)
        closed = frozenset(effect.slot for effect in effects if isinstance(effect, CloseSlot))
        yield from self._lose(closed, given=False)
        return request

    def _publish(self) -> None:
        machine, here, old = self.machine, self._here, self.snapshot
        if machine.phase is Phase.IN and machine.incarnation != self.joined_as:
            self.joined_as = machine.incarnation
            self.membership += 1
        if (machine.trust_until, machine.phase) != (old.trust_until, old.phase):
            here.lease.grant(here.keyspace, machine.trust_until, self.membership)
        lost = machine.store_lost_since is not None
        self.snapshot = Snapshot(machine.phase, machine.incarnation, machine.view, machine.trust_until, lost)
        if machine.view is not None and machine.view is not old.view:
            self._changes.adopted(old.view, machine.view, machine.dead)
        if here.observer is not None and self.snapshot.differs(old):
            here.observer.observe(self.snapshot)

    # -- slots ---------------------------------------------------------------------------------

    def _note_opened(self, event: Opened) -> None:
        slot = event.slot
        if not isinstance(slot, int) or self.machine.slots.get(slot) is not SlotState.OPENING:
            return
        self._here.lease.mark(self._here.keyspace, slot, open_here=True)
        if slot not in self._gained:
            self._gained.add(slot)
            self._fresh.add(slot)

    def _announce_gains(self) -> Flow[None]:
        if self._fresh:
            fresh, self._fresh = frozenset(self._fresh), set()
            yield from self._tell(self._here.hooks.gained, fresh)
            self._changes.gained(fresh, self._here.clock())

    def _opening(self) -> bool:
        return SlotState.OPENING in self.machine.slots.values()

    def _lose(self, slots: frozenset[int], *, given: bool) -> Flow[None]:
        if not slots:
            return
        yield from self._announce_gains()
        if lost := slots & self._gained:
            self._gained -= lost
            yield from self._tell(self._here.hooks.lost, lost)
            self._changes.lost(lost, self.snapshot.view, given=given)

    def _tell(self, hook: Callable[[str, frozenset[int]], None], slots: frozenset[int]) -> Flow[None]:
        """Tell the application, and wait until its handlers have returned."""
        if self._here.hooks.heeded:
            yield Aside(partial(hook, self._here.keyspace, slots))

    def _perform(self, effect: Effect) -> None:
        here = self._here
        match effect:
            case OpenSlot(slot, epoch, incarnation):
                here.slots.open((here.keyspace, slot), epoch, incarnation)
            case StopSlot(slot):
                here.lease.mark(here.keyspace, slot, open_here=False)
                here.slots.stop((here.keyspace, slot))
            case StopJobs(slot):
                assert here.jobs is not None, "nobody reported `TasksDrained`"
                here.jobs.stop_jobs((here.keyspace, slot))
            case CloseSlot(slot):
                here.lease.mark(here.keyspace, slot, open_here=False)
                here.slots.close((here.keyspace, slot))
            case Evicted():
                self._changes.evicted(effect)
            case WasEvicted():
                self._changes.was_evicted(effect, len(self._gained))
            case Refuse(reason, name_taken):
                here.hooks.refused(self._refusal(reason, name_taken=name_taken))
            case Say(text):
                logger.info("keyspace %s: %s", here.keyspace, text)

    def _refusal(self, reason: str, *, name_taken: bool) -> RefusedToStart:
        keyspace, view = self._here.keyspace, self.machine.view
        where = f"keyspace {keyspace!r}: {reason}"
        if name_taken:
            return NameTaken(f"{where}: give each worker its own name with -n")
        assert view is not None
        return KeyspaceMismatch(f"{where}. {how_to_agree(keyspace, view, self.machine.config.slots)}")

    def _joins(self, new: View) -> bool:
        """Return whether our next incarnation becomes a member by this document."""
        me = new.members.get(self.machine.config.name)
        return me is not None and me.incarnation == self.machine.incarnation != self.joined_as

    def _without_store(self, now: float) -> str:
        left = self.snapshot.trust_until - now
        if left > 0:
            return f"Open slots continue until the lease ends in {left:.1f} s; then nothing starts here"
        return "Nothing starts here without a lease"
