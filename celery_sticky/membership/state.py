"""The state of a member and its turns: it steps `ownership.machine`, asks the store, and tells the worker.

No thread, no clock, no client: see `flow` for the requests. The machine decides; here its effects are carried out in
order, and answers become events. What others have done never overtakes a report from this worker.
"""

from __future__ import annotations

import logging
from collections import deque

from celery_sticky.errors import (
    KeyspaceMismatch,
    NameTaken,
    RecordUnusable,
    RefusedToStart,
    StickyError,
    StoreUnavailable,
)
from celery_sticky.keyspace import how_to_agree
from celery_sticky.membership.flow import Flow, Pause, Prepare, Snapshot, Surroundings, Watch
from celery_sticky.ownership.events import (
    BeatDone,
    CloseSlot,
    Effect,
    Event,
    LoseSlots,
    Opened,
    OpenSlot,
    Read,
    ReadDone,
    Refuse,
    Say,
    SendBeat,
    StopSlot,
    StoreFailed,
    Swap,
    SwapDone,
    Tick,
)
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Machine, Phase
from celery_sticky.ownership.view import View
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.base import Store
from celery_sticky.stores.flow import ask

logger = logging.getLogger("celery_sticky.member")

LONGEST_WATCH = 30.0
BROKEN_PAUSE = 0.1
"""Seconds between attempts to listen to a store that does not answer."""
UNTOLD = "Workers that join from now on do not know which tasks were revoked here"


class MembershipState:
    """One worker's membership in one keyspace. `inbox` takes events from any thread."""

    def __init__(self, here: Surroundings, machine: Machine, inbox: deque[Event]) -> None:
        self.machine, self.snapshot = machine, Snapshot()
        self.joined_as = ""
        """The incarnation of the newest membership: what running tasks rely on."""
        self.membership = 0
        """Its number."""
        self._here, self._inbox = here, inbox
        self._outage = Outage(logger, f"keyspace {here.keyspace}", self._without_store)
        self._untold = Outage(logger, f"revokes of keyspace {here.keyspace}", lambda _: UNTOLD)
        self._subscribed = False
        self._answered_at: float | None = None
        """When the store last answered, if it has not failed since."""
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
            self._failed(error)
            self._inbox.appendleft(StoreFailed(self._here.clock()))
            yield from self._take_in()  # what needs no store is not delayed
            yield Pause(BROKEN_PAUSE)

    def _take_in(self) -> Flow[None]:
        while self._inbox:
            yield from self._step(self._inbox.popleft())
        self._announce_gains()

    def _listen(self) -> Flow[None]:
        now = self._here.clock()
        pause = self.machine.wake_at(now) - now
        if pause > 0:
            # After an outage do not wait: it is over only when the store has answered and can be listened to.
            back = self._outage.lasts and self._answered_at is not None
            heard = yield Watch(0.0 if back else min(pause, LONGEST_WATCH))
            if self._answered_at is not None:
                self._outage.over(self._answered_at)
            self._inbox.extend(heard)
        if not self._inbox:
            yield from self._step(Tick())

    def _step(self, event: Event) -> Flow[None]:
        following: Event | None = event
        while following is not None:
            effects = self._advance(following)
            following = None
            for effect in effects:
                match effect:
                    case Read() | SendBeat() | Swap():
                        following = yield from self._ask(effect)
                    case _:
                        self._perform(effect)

    def _advance(self, event: Event) -> list[Effect]:
        if isinstance(event, Opened):
            self._note_opened(event)
        effects = self.machine.step(event, self._here.clock(), more=bool(self._inbox))
        self._publish()
        return effects

    def _publish(self) -> None:
        machine, here, old = self.machine, self._here, self.snapshot
        if machine.phase is Phase.IN and machine.incarnation != self.joined_as:
            self.joined_as = machine.incarnation
            self.membership += 1
        if (machine.trust_until, machine.phase) != (old.trust_until, old.phase):
            here.lease.grant(here.keyspace, machine.trust_until, self.membership)
        lost = machine.store_lost_since is not None
        self.snapshot = Snapshot(machine.phase, machine.incarnation, machine.view, machine.trust_until, lost)
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

    def _announce_gains(self) -> None:
        if self._fresh:
            fresh, self._fresh = frozenset(self._fresh), set()
            self._here.hooks.gained(self._here.keyspace, fresh)

    def _lose(self, slots: frozenset[int]) -> None:
        self._announce_gains()
        if lost := slots & self._gained:
            self._gained -= lost
            self._here.hooks.lost(self._here.keyspace, lost)

    def _perform(self, effect: Effect) -> None:
        here = self._here
        match effect:
            case OpenSlot(slot, epoch, incarnation):
                here.slots.open((here.keyspace, slot), epoch, incarnation)
            case StopSlot(slot):
                here.lease.mark(here.keyspace, slot, open_here=False)
                here.slots.stop((here.keyspace, slot))
            case CloseSlot(slot):
                here.lease.mark(here.keyspace, slot, open_here=False)
                here.slots.close((here.keyspace, slot))
                self._lose(frozenset((slot,)))
            case LoseSlots(slots):
                self._lose(slots)
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

    # -- the store -----------------------------------------------------------------------------

    def _ask(self, effect: Read | SendBeat | Swap) -> Flow[Event]:
        sent = self._here.clock()
        try:
            answer = yield from self._request(effect, sent)
        except StickyError as error:  # a document that cannot be read is as bad as none
            self._failed(error)
            return StoreFailed(sent)
        self._answered_at = self._here.clock()
        return answer

    def _request(self, effect: Read | SendBeat | Swap, sent: float) -> Flow[Event]:
        match effect:
            case Read():
                reading = yield from ask(Store.read)
                return ReadDone(reading.view, dict(reading.heartbeats), reading.store_id, reading.clock)
            case SendBeat(incarnation, announce):
                heartbeat = yield from ask(Store.heartbeat, incarnation, announce=announce)
                if self._here.observer is not None and heartbeat.alive:
                    self._here.observer.heartbeat_done(incarnation, heartbeat.counter)
                yield from self._share_revokes()
                return BeatDone(
                    sent,
                    heartbeat.alive,
                    heartbeat.version,
                    heartbeat.generation,
                    heartbeat.store_id,
                    heartbeat.heartbeats,
                    heartbeat.counter,
                )
            case Swap(old, new, guard):
                if self._joins(new):
                    yield from self._prepare()
                sent = self._here.clock()
                done = yield from ask(Store.swap, old, new, guard)
                return SwapDone(sent, new, done)

    def _joins(self, new: View) -> bool:
        """Return whether our next incarnation becomes a member by this document."""
        me = new.members.get(self.machine.config.name)
        return me is not None and me.incarnation == self.machine.incarnation != self.joined_as

    def _prepare(self) -> Flow[None]:
        yield Prepare(self.machine.incarnation)
        try:
            revoked = yield from ask(Store.revoked)  # before slots arrive
        except RecordUnusable as error:  # all keyspaces share this key: it must not keep workers from joining any
            keyspace = self._here.keyspace
            logger.error("keyspace %s: joining without knowing which tasks were revoked: %s", keyspace, error)
        else:
            self._here.hooks.learn_revokes(revoked)

    def _share_revokes(self) -> Flow[None]:
        here = self._here
        if not (fresh := here.hooks.fresh_revokes()):
            return
        try:
            yield from ask(Store.revoke, fresh, ttl=here.revoke_ttl, limit=here.revoke_limit)
        except StoreUnavailable as error:
            # The heartbeat before this was counted: an error here must not cost the lease.
            self._untold.failed(error, here.clock())
        else:
            here.hooks.revokes_told(fresh)
            self._untold.over(here.clock())

    def _failed(self, error: StickyError) -> None:
        """Record that the store has not answered, or not with anything usable."""
        self._answered_at = None
        self._outage.failed(error, self._here.clock())

    def _without_store(self, now: float) -> str:
        left = self.snapshot.trust_until - now
        if left > 0:
            return f"Open slots continue until the lease ends in {left:.1f} s; then nothing starts here"
        return "Nothing starts here without a lease"
