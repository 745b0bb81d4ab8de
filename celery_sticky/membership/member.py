"""The member thread: runs `ownership.machine` against a store, in an operating system thread with its own client.

It alone writes the lease and uses its store. Everything else talks to it through `post`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from celery_sticky.errors import KeyspaceMismatch, NameTaken, RefusedToStart, StoreUnavailable
from celery_sticky.keys import SlotId
from celery_sticky.keyspace import how_to_agree
from celery_sticky.membership.clerk import Clerk
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.ownership.events import (
    BeatDone,
    CloseSlot,
    Effect,
    Event,
    LeaveAsked,
    LoseSlots,
    Opened,
    OpenSlot,
    Read,
    Refuse,
    Say,
    SendBeat,
    StopSlot,
    StoreFailed,
    Swap,
    Tick,
)
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Machine, MemberConfig, Phase
from celery_sticky.ownership.view import View
from celery_sticky.platform.native import start_native_thread
from celery_sticky.stores.base import Store

logger = logging.getLogger("celery_sticky.member")

LONGEST_WATCH = 30.0
BROKEN_PAUSE = 0.1
"""Seconds between attempts to listen to a store that does not answer."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A member's state at one instant; replaced as a whole."""

    phase: Phase = Phase.OUT
    incarnation: str = ""
    view: View | None = None
    trust_until: float = float("-inf")
    store_lost: bool = False


class Slots(Protocol):
    """The interface to the owner of the worker's slots. No method blocks; answers are posted as events."""

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a slot; reports `Opened` or `OpenRefused`."""

    def stop(self, slot: SlotId) -> None:
        """Start nothing more in a slot; reports `Drained` once nothing of it is left here."""

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already."""


class Hooks(Protocol):
    """Callbacks from the member to the application. Called in the member's thread."""

    def gained(self, keyspace: str, slots: frozenset[int]) -> None:
        """Handle that these slots are open here."""

    def lost(self, keyspace: str, slots: frozenset[int]) -> None:
        """Handle that nothing of these slots runs here any more; the next owner starts only after this returns."""

    def refused(self, error: RefusedToStart) -> None:
        """Stop this worker."""

    def fresh_revokes(self) -> Collection[str]:
        """Return ids revoked here that the other workers do not know yet."""

    def revokes_told(self, task_ids: Collection[str]) -> None:
        """Note that the store has these ids: they need not be shared again."""

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """Note that these ids were revoked before this worker joined."""


class Placer(Protocol):
    """Callbacks from the member to the placer of a placed keyspace. Called in the member's thread."""

    def joining(self, incarnation: str) -> None:
        """Prepare to join; raise `StoreUnavailable` to make the member retry."""

    def observe(self, snapshot: Snapshot) -> None:
        """Handle a new phase, incarnation or view."""

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """Handle a counted heartbeat."""


class Member:
    """One worker's membership in one keyspace."""

    def __init__(
        self,
        keyspace: str,
        config: Callable[[str], MemberConfig],
        open_store: Callable[[], Store],
        slots: Slots,
        lease: Lease,
        name_lock: NameLock,
        hooks: Hooks,
        *,
        revoke_ttl: float,
        revoke_limit: int,
        placer: Placer | None = None,
    ) -> None:
        self._placer = placer
        self.keyspace = keyspace
        self.snapshot = Snapshot()
        self._config, self._slots, self._lease, self._name_lock, self._hooks = config, slots, lease, name_lock, hooks
        self._inbox: deque[Event] = deque()
        self._clerk = Clerk(
            keyspace,
            open_store,
            hooks,
            self._before_join,
            self._without_store,
            revoke_ttl=revoke_ttl,
            revoke_limit=revoke_limit,
        )
        self._gained: set[int] = set()
        self._fresh: set[int] = set()
        self._term = 0
        self._joined_as = ""
        self._started = False
        self._running = True
        self._ended = False

    def start(self) -> None:
        """Take the name lock and start to join.

        Raises:
            NameTaken: a living process on this machine has the name.
        """
        self._machine = Machine(self._config(self._name_lock.acquire()), boottime())
        self._started = True
        start_native_thread(self._run)

    def post(self, event: Event) -> None:
        """Send an event to the member. Any thread may call this."""
        self._inbox.append(event)
        self._clerk.wake()

    def slots(self) -> tuple[int, int]:
        """Return how many slots are open here, and how many are opening or closing. Any thread may call this."""
        if not self._started:
            return 0, 0
        states = list(self._machine.slots.values())  # one step, so the dict cannot change during the copy
        open_here = states.count(SlotState.OPEN)
        return open_here, len(states) - open_here

    def leave(self) -> None:
        """Start to give all slots away."""
        self.post(LeaveAsked())

    def finish(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until everything is given away, then end; False if something was left.

        Return True if the member was never started.
        """
        if not self._started:
            return True
        self.post(LeaveAsked())
        deadline = time.monotonic() + timeout
        while self.snapshot.phase not in (Phase.LEFT, Phase.REFUSED) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._running = False
        self.post(Tick())
        while not self._ended and time.monotonic() < deadline + 1:
            time.sleep(0.005)
        if self.snapshot.phase is Phase.LEFT:
            self._name_lock.release()
        return self.snapshot.phase is Phase.LEFT

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                try:
                    self._clerk.connect()
                    self._turn()
                except StoreUnavailable as error:
                    self._clerk.failed(error)
                    self._step(StoreFailed(boottime()))
                    time.sleep(BROKEN_PAUSE)
                except Exception:
                    logger.exception("keyspace %s: the member met an unexpected error; it continues", self.keyspace)
                    self._step(StoreFailed(boottime()))
                    time.sleep(BROKEN_PAUSE * 10)
        finally:
            self._lease.grant(self.keyspace, float("-inf"), self._term)
            self._clerk.close()
            self._ended = True

    def _turn(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            self._step(event, more=bool(self._inbox))
        self._announce_gains()
        now = boottime()
        pause = self._machine.wake_at(now) - now
        if pause > 0:
            # Keep the order of events: what others have done must not overtake a report from this worker.
            self._inbox.extend(self._clerk.watch(min(pause, LONGEST_WATCH)))
        if not self._inbox:
            self._step(Tick())

    def _step(self, event: Event, *, more: bool = False) -> None:
        following: Event | None = event
        while following is not None:
            event, following = following, None
            if isinstance(event, Opened):
                self._note_opened(event)
            effects = self._machine.step(event, boottime(), more=more)
            self._publish()
            for effect in effects:
                following = self._perform(effect) or following

    def _publish(self) -> None:
        machine = self._machine
        if machine.phase is Phase.IN and machine.incarnation != self._joined_as:
            self._joined_as = machine.incarnation
            self._term += 1
        old = self.snapshot
        if (machine.trust_until, machine.phase) != (old.trust_until, old.phase):
            self._lease.grant(self.keyspace, machine.trust_until, self._term)
        self.snapshot = Snapshot(
            machine.phase,
            machine.incarnation,
            machine.view,
            machine.trust_until,
            machine.store_lost_since is not None,
        )
        if self._placer is not None and changed(old, self.snapshot):
            self._placer.observe(self.snapshot)

    def _note_opened(self, event: Opened) -> None:
        machine = self._machine
        if not isinstance(event.slot, int) or machine.slots.get(event.slot) is not SlotState.OPENING:
            return
        self._lease.mark(self.keyspace, event.slot, open_here=True)
        if event.slot not in self._gained:
            self._gained.add(event.slot)
            self._fresh.add(event.slot)

    def _announce_gains(self) -> None:
        if self._fresh:
            fresh, self._fresh = frozenset(self._fresh), set()
            self._hooks.gained(self.keyspace, fresh)

    # -- effects -------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Event | None:
        match effect:
            case OpenSlot(slot, epoch, incarnation):
                self._slots.open((self.keyspace, slot), epoch, incarnation)
            case StopSlot(slot):
                self._lease.mark(self.keyspace, slot, open_here=False)
                self._slots.stop((self.keyspace, slot))
            case CloseSlot(slot):
                self._lease.mark(self.keyspace, slot, open_here=False)
                self._slots.close((self.keyspace, slot))
                self._lose(frozenset((slot,)))
            case LoseSlots(slots):
                self._lose(slots)
            case Refuse(reason, name_taken):
                self._hooks.refused(self._refusal(reason, name_taken=name_taken))
            case Say(text):
                logger.info("keyspace %s: %s", self.keyspace, text)
            case Read() | SendBeat() | Swap():
                answer = self._clerk.ask(effect, self._joins(effect))
                self._tell_beats(effect, answer)
                return answer
        return None

    def _tell_beats(self, effect: Effect, answer: Event) -> None:
        match effect, answer:
            case SendBeat(incarnation), BeatDone(alive=True, counter=counter) if self._placer is not None:
                self._placer.heartbeat_done(incarnation, counter)

    def _refusal(self, reason: str, *, name_taken: bool) -> RefusedToStart:
        where, view = f"keyspace {self.keyspace!r}: {reason}", self._machine.view
        if name_taken:
            return NameTaken(f"{where}: give each worker its own name with -n")
        assert view is not None
        return KeyspaceMismatch(f"{where}. {how_to_agree(self.keyspace, view, self._machine.config.slots)}")

    def _lose(self, slots: frozenset[int]) -> None:
        self._announce_gains()
        if lost := slots & self._gained:
            self._gained -= lost
            self._hooks.lost(self.keyspace, lost)

    def _joins(self, effect: Read | SendBeat | Swap) -> str:
        """Return our incarnation if this effect makes it a member, else an empty string."""
        me = effect.new.members.get(self._machine.config.name) if isinstance(effect, Swap) else None
        fresh = me is not None and me.incarnation == self._machine.incarnation != self._joined_as
        return self._machine.incarnation if fresh else ""

    def _before_join(self, store: Store, incarnation: str) -> None:
        # The lock file must name us before others can see us, and revokes must be known before slots arrive.
        self._name_lock.write(incarnation)
        self._clerk.learn_revokes(store)
        if self._placer is not None:
            self._placer.joining(incarnation)

    def _without_store(self, now: float) -> str:
        left = self.snapshot.trust_until - now
        if left > 0:
            return f"Open slots continue until the lease ends in {left:.1f} s; then nothing starts here"
        return "Nothing starts here without a lease"


def changed(old: Snapshot, new: Snapshot) -> bool:
    """Return whether the placer must hear of the change."""
    return (old.phase, old.incarnation) != (new.phase, new.incarnation) or old.view is not new.view
