"""One member's life in a keyspace: when it trusts its lease, whom it evicts, which slots it opens, stops and releases.

Pure: `step(event, now)` returns effects. The caller carries them out in order and feeds the outcome of a store effect
back before any other event. Rules:

- Every decision is taken afresh from the newest view (level-triggered), so a lost signal costs one heartbeat at most.
- A step has at most one store effect. If its answer is lost, nothing is assumed about it: read again.
- Times come from one clock of this process, which counts suspend. Clocks of other machines are never compared.

                      view has me              my heartbeat is answered gone, or a view lacks me
    OUT ------------------------------> IN ------------------------------------------------------> OUT, new incarnation
     |  name taken, other slots or hash  |  leaving and the last slot is released
     +----------> REFUSED                +----------> LEFT

`holdings` has the state of each slot here, `watches` the heartbeats of other members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from celery_sticky.ownership import changes
from celery_sticky.ownership.events import (
    BeatDone,
    DrainAsked,
    Drained,
    Effect,
    Event,
    Evicted,
    HeartbeatHeard,
    LeaveAsked,
    LoseSlots,
    Opened,
    OpenRefused,
    Read,
    ReadDone,
    Refuse,
    Say,
    SendBeat,
    StoreFailed,
    Swap,
    SwapDone,
    TasksDrained,
    Tick,
    ViewChanged,
    WasEvicted,
    WorkerQueueClosed,
)
from celery_sticky.ownership.holdings import Holdings, SlotState
from celery_sticky.ownership.needs import Need, Needs
from celery_sticky.ownership.view import STALLED, Member, MemberState, View
from celery_sticky.ownership.watches import Watches

ANNOUNCED_MEMBERS = 64
"""Up to this many members get each other's heartbeats as signals; above, each reads all counters with its own."""

PROOF_OF_LIFE = 3
"""How many changes of a heartbeat counter prove that a member lives. Of a dead one, two may still be in flight: one
whose answer did not come, and its repetition."""

UNABLE = "it left because it could not run anything"
DRAINED = "it is drained: it has given everything away, and takes nothing until `celery sticky drain --undo`"


class Phase(StrEnum):
    """The stage of a member's life."""

    OUT = "out"
    IN = "in"
    LEFT = "left"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """The configuration of a member; times in seconds."""

    name: str
    origin: str
    """Unique to this process start; incarnations are derived from it."""
    slots: int
    hash: str
    ttl: float
    margin: float
    settle: float
    broker_grace: float
    epochs_outlive_store: bool = True
    """Whether the broker knows the epochs of slots even if the store has lost them."""
    loop_timeout: float = 0.0
    """How long the loop may be silent after the broker is back, since Celery reconnects at its own pace."""
    weight: int = 1
    attributes: dict[str, str] = field(default_factory=dict)
    dead_incarnation: str = ""
    """An incarnation of our name that is known to be dead on this machine, or an empty string."""
    jitter: float = 0.0
    """Between 0 and 1, different in each process: staggers actions that all members would take at once."""


class Machine:
    """The state of one member. Others may read the attributes; only `step` changes them."""

    def __init__(self, config: MemberConfig, now: float) -> None:
        self.config = config
        self.phase = Phase.OUT
        self.view: View | None = None
        self.trust_until = float("-inf")
        self._holdings = Holdings(config.name)
        self._watches = Watches()
        self.dead = frozenset[str]()
        """The names of members that are missing from the newest view because they were declared dead."""
        self.leaving = self.draining = False
        self.store_lost_since: float | None = None
        self._lost_look: tuple[tuple[int, int] | None, float] = (None, now)
        self._look_sent = now
        self._joins = 0
        self._contact = now
        self._read_at: float | None = now
        self._beat_at = float("inf")
        self._swap_at = now
        self._retry_at = now
        self._failed = False
        self._unowned_since: float | None = None
        self._needs = Needs(config.broker_grace, config.loop_timeout)
        self._sent_away = False
        self._left_why = UNABLE
        self._newest = (0, 0)
        self._highest_epoch = 0
        self._joining_sent: float | None = None
        self._busy = False
        self._tries = 0
        self._changed = True
        self._worker_queue_closed = ""
        self._evicting: tuple[Evicted, ...] = ()
        """The evictions of the newest swap, until it is known to be done."""

    @property
    def slots(self) -> Mapping[int, SlotState]:
        """The state of each slot that this member holds, opens or closes."""
        return self._holdings.states

    @property
    def drained(self) -> bool:
        """Whether this member has given everything away because somebody wants that, and takes nothing."""
        return self.draining and self.phase is Phase.OUT and self._joining_sent is None

    @property
    def incarnation(self) -> str:
        """The incarnation of the present or next membership."""
        return f"{self.config.origin}-{self._joins}"

    def trusts(self, now: float) -> bool:
        """Return whether the member can prove that it may act on the slots it owns."""
        return self.phase is Phase.IN and now < self.trust_until

    # -- time ----------------------------------------------------------------------------------

    def wake_at(self, now: float) -> float:
        """Return when the next `Tick` is due."""
        if self.phase in (Phase.LEFT, Phase.REFUSED):
            return float("inf")
        joined = self.phase is Phase.IN and self.view is not None
        times = [self._beat_at] if joined and self.store_lost_since is None else []
        if self._read_at is not None:
            times.append(self._read_at)  # only a heartbeat precedes it
        elif joined and self.view is not None:
            times += [max(t, self._swap_at) for t in self._deadlines(self.view, now)]
        else:
            times.append(self._swap_at)
        return max(min(times), self._retry_at, now)

    def heartbeat_due(self, at: float) -> bool:
        """Return whether a heartbeat is due at this time."""
        return self.phase is Phase.IN and self.store_lost_since is None and at >= self._beat_at

    def _deadlines(self, view: View, now: float) -> list[float]:
        """Return the times at which `_change_view` may have something to do."""
        times = [self._evicted_at(member) for member in self._others(view)] if self.trusts(now) else []
        if self._unowned_since is not None:
            times.append(self._unowned_since + self.config.settle)
        if self._holdings.outbid(view) or self._holdings.given(view) or self._may_depart(view):
            times.append(self._swap_at)
        if self._stall_is_news(view):
            times.append(self._swap_at)
        return [*times, self._leaves_at(view)]

    @property
    def _retry_pause(self) -> float:
        """Shortest pause after a request that failed; the longest is twice as long."""
        return min(0.25, self.config.ttl / 20)

    @property
    def _eviction_timeout(self) -> float:
        return self.config.ttl + self.config.margin

    def _later(self, now: float, least: float) -> float:
        # Spread by member and attempt without random numbers: the fractional part moves through the interval.
        self._tries += 1
        return now + least * (1 + (self.config.jitter + self._tries * 0.618) % 1)

    # -- events --------------------------------------------------------------------------------

    def step(self, event: Event, now: float, *, more: bool = False) -> list[Effect]:
        """Process an event; return the effects, in order.

        With `more`, the next event is at hand: the store is asked only after the last one, so that all changes go into
        one swap.
        """
        if self.phase in (Phase.LEFT, Phase.REFUSED):
            return []
        effects: list[Effect] = []
        match event:
            case ReadDone() | BeatDone() | SwapDone() | StoreFailed():
                self._busy = False
                self._on_answer(event, now, effects)
            case ViewChanged() | HeartbeatHeard():
                self._on_signal(event, now)
            case Opened() | OpenRefused() | TasksDrained() | Drained():
                self._on_slot(event, now, effects)
            case WorkerQueueClosed(incarnation):
                self._worker_queue_closed = incarnation
            case LeaveAsked():
                self.leaving = True
            case DrainAsked(undo):
                self._on_drain(now, undo=undo)
            case Tick():
                pass  # nothing but time has changed
            case _:
                self._needs.hear(event, now)
                self._sent_away = self._sent_away and not self._needs.met
        if self._changed:
            self._changed = False
            self._holdings.reconcile(self._view_of_ours, self.incarnation, effects)
        if not (self._busy or more):
            self._ask_store(now, effects)
        return effects

    def _on_answer(
        self, event: ReadDone | BeatDone | SwapDone | StoreFailed, now: float, effects: list[Effect]
    ) -> None:
        match event:
            case ReadDone():
                self._on_read(event, now, effects)
            case BeatDone():
                self._on_beat(event, now, effects)
            case SwapDone():
                self._on_swap(event, now, effects)
            case StoreFailed():
                self._on_store_failed(now)

    def _on_signal(self, event: ViewChanged | HeartbeatHeard, now: float) -> None:
        match event:
            case ViewChanged(version):
                if self.view is None or version > self.view.version:
                    self._read_at = now
            case HeartbeatHeard(incarnation, counter):
                self._watches.hear(incarnation, counter, now)

    def _on_slot(self, event: Opened | OpenRefused | TasksDrained | Drained, now: float, effects: list[Effect]) -> None:
        match event:
            case Opened(int(slot), epoch):
                self._holdings.opened(slot, epoch)
            case OpenRefused(int(slot), fence):
                if self._holdings.refused(slot, fence):
                    # A later owner may have set it: read what its epoch means before outbidding it.
                    self._read_at = now
            case TasksDrained(slot):
                self._holdings.tasks_drained(slot, self._view_of_ours, self.incarnation, effects)
            case Drained(int(slot)):
                self._holdings.drained(slot, self._view_of_ours, self.incarnation, effects)

    def _on_drain(self, now: float, *, undo: bool) -> None:
        self.draining = not undo
        if undo and self.phase is Phase.OUT:
            self._read_at = now  # and then join

    def _on_read(self, event: ReadDone, now: float, effects: list[Effect]) -> None:
        self._read_at = None
        self._touch(now)
        view = event.view
        if view is not None:
            self._highest_epoch = max(self._highest_epoch, view.max_epoch)
        stale = view is not None and (view.generation, view.version) < self._newest
        if view is None or view.store_id != event.store_id or stale:
            self._on_store_lost(view, event, now, effects)
            return
        self.store_lost_since = None
        self._watches.read(view.members.values(), event.heartbeats, now)
        self._adopt(view, now, effects)

    def _on_beat(self, event: BeatDone, now: float, effects: list[Effect]) -> None:
        self._touch(now)
        self._beat_at = event.sent + self.config.ttl / 3
        view = self.view
        if (
            view is None
            or (event.store_id, event.generation) != (view.store_id, view.generation)
            or event.version < view.version
        ):
            self._read_at = now  # the store seems lost or rolled back: such a store renews no lease
        elif not event.alive:
            self._on_gone(now, effects, self._parting(view, view))
        else:
            self.trust_until = event.sent + self.config.ttl - self.config.margin
            if event.version != view.version:
                self._read_at = now
            elif event.heartbeats:
                self._watches.read(view.members.values(), event.heartbeats, now)

    def _on_swap(self, event: SwapDone, now: float, effects: list[Effect]) -> None:
        self._touch(now)
        # A refused swap shows that no new document was needed. If the store is lost anyway, the wait starts again.
        self.store_lost_since = None
        if event.done:
            self._read_at = None  # what we have just written is the newest
            self._adopt(event.new, now, effects, own=True)
        else:
            self._joining_sent, self._evicting = None, ()
            # Losing the race is no error: read again, a moment later than the others.
            self._read_at = now
            self._swap_at = self._later(now, 0.02)

    def _on_store_failed(self, now: float) -> None:
        if self._read_at is None:
            self._read_at = now
        if self._retry_at <= now:  # repeated failures must not push the retry further away
            self._retry_at = self._later(now, self._retry_pause)
        self._failed = True
        if self.phase is Phase.OUT and self._joining_sent is not None:
            # That swap may still arrive, and join an incarnation that nobody uses: we would then replace it at once.
            self._joins += 1
            self._joining_sent = None

    def _touch(self, now: float) -> None:
        # After a gap in our own contact, an unchanged counter proves nothing.
        if now - self._contact > self.config.ttl / 2:
            self._watches.restart(now)
        elif self._failed:
            # Nor does it after a shorter one, until the others have had the time for two attempts, as we had for ours.
            self._watches.spare(now - self._eviction_timeout + 4 * self._retry_pause)
        self._contact, self._failed = now, False

    # -- the view ------------------------------------------------------------------------------

    @property
    def _view_of_ours(self) -> View | None:
        return self.view if self.phase is Phase.IN else None

    def _adopt(self, view: View, now: float, effects: list[Effect], *, own: bool = False) -> None:
        old = self.view
        if old is not None and old.generation != view.generation:
            self._unowned_since = None  # a new document starts its wait for other workers from the beginning
        self.dead = self._declared_dead(old, view, now)
        effects += [evicted for evicted in self._evicting if evicted.name in self.dead]
        self._evicting = ()
        self.view = view
        self._changed = True
        self._newest = (view.generation, view.version)
        self._highest_epoch = max(self._highest_epoch, view.max_epoch)
        self._watches.keep(view.members.values(), now)
        unowned = bool(view.unowned) and any(member.weight for member in view.active)
        self._unowned_since = (self._unowned_since if self._unowned_since is not None else now) if unowned else None
        me = view.members.get(self.config.name)
        mine = me is not None and me.incarnation == self.incarnation
        if self.phase is Phase.OUT and mine and self._joining_sent is not None:
            self.phase = Phase.IN
            self.trust_until = self._joining_sent + self.config.ttl - self.config.margin
            self._beat_at = self._joining_sent + self.config.ttl / 3
            effects.append(Say(f"joined as {self.incarnation} at version {view.version}"))
        elif self.phase is Phase.IN and not mine:
            self._on_gone(now, effects, self._parting(old, view, own=own))

    def _parting(self, old: View | None, new: View, *, own: bool = False) -> str:
        """Return why this member is missing from the new view, which may be its own; empty: it was evicted."""
        if old is None or old.generation != new.generation:
            return "the document is a new one"
        me = old.members.get(self.config.name)
        leaving = me is not None and me.state is MemberState.LEAVING
        return self._left_why if own or leaving or self._sent_away else ""

    def _declared_dead(self, old: View | None, new: View, now: float) -> frozenset[str]:
        """Return who is missing from the new view and has not left.

        Who leaves sends heartbeats until then. An earlier process with our own name is dead, or we could not be here.
        """
        if old is None or old.generation != new.generation:
            return frozenset()
        present = {self.incarnation, *(member.incarnation for member in new.members.values())}
        gone = [member for member in old.members.values() if member.incarnation not in present]
        mine, ttl = self.config.name, self.config.ttl
        return frozenset(m.name for m in gone if m.name == mine or now - self._watches[m].since >= ttl)

    def _on_gone(self, now: float, effects: list[Effect], why: str) -> None:
        if self.leaving:
            self.phase = Phase.LEFT
            self._changed = True
            self.trust_until = float("-inf")
            return
        if why:
            effects.append(Say(f"no longer a member: {why}"))
        else:
            counted = self.trust_until - self.config.ttl + self.config.margin
            effects.append(WasEvicted(self.incarnation, now - counted))
        self.phase = Phase.OUT
        self._changed = True
        self.trust_until = float("-inf")
        self._joins += 1
        self._joining_sent = None
        self._beat_at = float("inf")
        self._read_at = now

    def _on_store_lost(self, view: View | None, event: ReadDone, now: float, effects: list[Effect]) -> None:
        found = None if view is None else (view.generation, view.version)
        if self.store_lost_since is None or self._may_have_missed_a_document(found, now):
            self.store_lost_since = now
            what = (
                "no ownership document (on a first deployment, 'celery sticky init' skips this wait)"
                if view is None
                else "the document is from another run of this store, or an older copy"
            )
            effects.append(
                Say(
                    f"{what}; waiting {self._eviction_timeout:.1f} s in case other workers hold leases, "
                    "then writing a new one; keyed tasks wait unless this worker still has a lease"
                )
            )
        self._lost_look = found, self._look_sent
        self._read_at = self._later(now, self.config.ttl / 12)
        if now < self.store_lost_since + self._eviction_timeout or (self.leaving and self.phase is Phase.OUT):
            return
        generation, version = max(self._newest, (view.generation, view.version) if view else (0, 0))
        new = changes.fresh(
            slots=self.config.slots,
            hash=self.config.hash,
            generation=changes.generation_after(generation, event.clock),
            version=version + 1,
            store_id=event.store_id,
            epochs=changes.epochs_after(
                self._highest_epoch + 1, event.clock, outlive_store=self.config.epochs_outlive_store
            ),
        )
        self._emit_swap(Swap(view, new, {}, until=event.clock + self._without_owners), effects)

    def _may_have_missed_a_document(self, found: tuple[int, int] | None, now: float) -> bool:
        """Return whether a document may have been written and lost since our last look, making somebody an owner.

        A new document makes nobody an owner before its `settle` time is over: a document that we could not see was
        never that old.
        """
        before, look_sent = self._lost_look
        return found != before or now > look_sent + self._without_owners

    @property
    def _without_owners(self) -> float:
        """For how many seconds a new document has no owners."""
        return max(self.config.settle, self.config.ttl / 6)

    # -- asking the store ----------------------------------------------------------------------

    def _ask_store(self, now: float, effects: list[Effect]) -> None:
        """Choose the one store effect that is most urgent now."""
        if self.leaving and self.phase is Phase.OUT:
            self.phase = Phase.LEFT
        elif now < self._retry_at:
            pass  # the store has just failed to answer; the heartbeat goes first when the retry is due
        elif self.heartbeat_due(now):
            self._busy = True
            announce = self.view is not None and len(self.view.members) <= ANNOUNCED_MEMBERS
            effects.append(SendBeat(self.incarnation, announce))
        elif self._read_at is not None:
            if now >= self._read_at:
                self._busy = True
                self._look_sent = now
                effects.append(Read())
        elif self.view is None or self.store_lost_since is not None:
            self._read_at = now + self.config.ttl / 12
        elif now < self._swap_at:
            pass  # another member's swap has just won
        elif self.phase is Phase.OUT:
            self._try_join(self.view, now, effects)
        else:
            self._change_view(self.view, now, effects)

    def _emit_swap(self, swap: Swap, effects: list[Effect]) -> None:
        self._busy = True
        effects.append(swap)

    def _try_join(self, view: View, now: float, effects: list[Effect]) -> None:
        config = self.config
        if self.draining:
            self._read_at = now + config.ttl / 3
            return
        # Evicted or not: a member that would leave for lack of a broker must not make others give it slots. A broker
        # outage may be over soon; but a job host may be unable to load the app, and a loop may hang for good.
        self._sent_away |= now >= self._grace_ends_at(view)
        if self._needs.lacks(Need.HOST, Need.LOOP) or (self._needs.lacks(Need.BROKER) and self._sent_away):
            self._read_at = now + config.ttl / 3
            return
        if (view.slots, view.hash) != (config.slots, config.hash):
            self.phase = Phase.REFUSED
            effects.append(Refuse(
                f"the keyspace was created with {view.slots} slots and hash {view.hash!r}, this worker is configured "
                f"with {config.slots} slots and hash {config.hash!r}", name_taken=False))  # fmt: skip
            return
        member = Member(config.name, self.incarnation, weight=config.weight, attributes=config.attributes)
        rival = view.members.get(config.name)
        if rival is None:
            cold = all(owner is None for owner in view.owner)
            new, guard = changes.join(view, member, settle=cold), dict[str, int]()
        elif self._rival_is_dead(rival, now, effects):
            new = changes.succeed(view, member)
            guard = self._watches.guard([rival])
        else:
            return
        self._joining_sent = now
        self._emit_swap(Swap(view, new, guard), effects)

    def _rival_is_dead(self, rival: Member, now: float, effects: list[Effect]) -> bool:
        watch = self._watches[rival]
        if rival.incarnation == self.config.dead_incarnation or rival.incarnation.startswith(f"{self.config.origin}-"):
            return True
        if watch.changes >= PROOF_OF_LIFE:
            self.phase = Phase.REFUSED
            effects.append(Refuse(f"another live worker is named {self.config.name!r}", name_taken=True))
            return False
        if now >= self._evicted_at(rival):
            return True
        self._read_at = now + self.config.ttl / 6
        return False

    def _others(self, view: View) -> list[Member]:
        return [member for member in view.members.values() if member.name != self.config.name]

    def _evicted_at(self, member: Member) -> float:
        return self._watches[member].since + self._eviction_timeout

    def _is_active(self, view: View) -> bool:
        me = view.members.get(self.config.name)
        return me is not None and me.state is MemberState.ACTIVE

    def _change_view(self, view: View, now: float, effects: list[Effect]) -> None:
        """Put all changes that this member has to make into one swap."""
        config = self.config
        new = view
        silent = [m for m in self._others(view) if now >= self._evicted_at(m)] if self.trusts(now) else []
        for member in silent:
            new = changes.evict(new, member.name)
        self._evicting = tuple(
            Evicted(m.name, now - self._watches[m].since, len(view.owned_by(m.name))) for m in silent
        )
        if now >= self._leaves_at(new):
            self._sent_away = not (self.leaving or self.draining)
            self._left_why = UNABLE if self._sent_away else DRAINED
            new = changes.leave(new, config.name)
        if self._stall_is_news(new):
            new = changes.stall(new, config.name, self._needs.stall)
        for slot, fence in self._holdings.outbid(new).items():
            new = changes.raise_epoch(new, slot, fence)
        if self._unowned_since is not None and now >= self._unowned_since + config.settle:
            new = changes.replan(new)
        if given := self._holdings.given(new) if config.name in new.members else frozenset():
            new = changes.release(new, config.name, sorted(given))
        if self._may_depart(new):
            new = changes.depart(new, config.name)
        if new is view:
            return
        if untold := self._holdings.tell(given):
            effects.append(LoseSlots(untold))
        self._emit_swap(Swap(view, _one_step(view, new), self._watches.guard(silent)), effects)

    def _may_depart(self, view: View) -> bool:
        me = view.members.get(self.config.name)
        leaving = me is not None and me.state is MemberState.LEAVING and me.name not in view.owner
        return leaving and self._worker_queue_closed == self.incarnation

    def _stall_is_news(self, view: View) -> bool:
        me = view.members.get(self.config.name)
        return me is not None and me.attributes.get(STALLED, "") != self._needs.stall

    def _leaves_at(self, view: View) -> float:
        """Return when this member should start to leave."""
        if not self._is_active(view):
            return float("inf")
        if self.leaving or self.draining:
            return float("-inf")
        return self._grace_ends_at(view)

    def _grace_ends_at(self, view: View) -> float:
        """Return when this member will have lacked something it needs for too long."""
        ends_at = self._needs.grace_ends_at()
        if ends_at == float("inf"):
            return ends_at
        # Without peers that run tasks nobody else could do better: keep the slots and wait.
        peers = any(m.name != self.config.name and STALLED not in m.attributes for m in view.active)
        return ends_at if peers else float("inf")


def _one_step(old: View, new: View) -> View:
    """Give all changes of one swap a single version."""
    return replace(new, version=old.version + 1)
