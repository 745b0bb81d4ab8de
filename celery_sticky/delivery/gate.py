"""The gate of a worker: one task of a key at a time, in order; tasks of other keys overtake.

Pure: no clock, no threads. Threads that share a gate hold one lock around every call. Because this lock covers both
`start` and `lose`, a start is a reservation: after a slot is lost, nothing of it starts.

The stages of an entry:

    WAITING --(its key is free)--> READY --take--> HANDED --start--> STARTED --end--> ENDED --settled--> gone
       |     --> LIMITED --(a token)-->^
       |                             |                |                 |
       +---- lose / recall: forgotten, the broker still has it ----+    +-- again: READY, the key stays locked

A message that ended here under an earlier delivery is ENDED before its turn, anywhere in the queue of its key.
A key is locked from READY until the broker has confirmed the disposition: if the next task started earlier, a crash in
between would show m1 m2 m1. Losing a slot does not unlock a key whose task runs here; only the end of that task does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct

from celery_sticky.delivery.limited import Bucket, Limited
from celery_sticky.delivery.run_claims import Grant, RunClaims
from celery_sticky.keys import KeyId, SlotId
from celery_sticky.queues.base import RunClaim


class Stage(StrEnum):
    """The stage of an entry."""

    WAITING = "waiting"
    LIMITED = "limited"
    READY = "ready"
    HANDED = "handed"
    STARTED = "started"
    ENDED = "ended"
    GONE = "gone"


class Entry(Struct, eq=False):
    """One delivery inside this worker. Equal only to itself."""

    slot: SlotId
    tag: Any
    """The broker's name for the delivery. Opaque here, except that tags are ordered by fetch."""
    key: Hashable
    """The lock: keyspace and key for a serial task, the task's id for a task that only wants affinity."""
    content: Any = None
    """The message, opaque here."""
    attempts: int | None = None
    """Starts counted at the broker; None: the broker need not count this delivery's start."""
    start_counted: bool = False
    """Whether the next start is counted already."""
    stage: Stage = Stage.WAITING
    turn: int = 0
    """Number of hand-outs: a start with an older number is refused."""
    orphan: bool = False
    """Its slot was lost while it ran: another worker may have had the message since."""
    adrift: bool = False
    """The broker does not know this delivery: the message is settled, or returns under another tag."""
    claim: KeyId | None = None
    """The key that this worker must claim before the task may start; None: owning the slot is enough."""
    pending: bool = False
    """The key is not claimed yet: the entry waits, even as the first of its key."""
    token: int = 0
    """The fencing token of the claim."""
    base: int = 0
    """The attempts among `attempts` that were counted in earlier queues."""
    kind: str = ""
    """The task's name, which selects its rate limit."""
    began: bool = False
    """A run of it has begun here: the pool has accepted it."""
    withdrawn: bool = False
    """It was taken out of its key's queue: its message goes elsewhere."""
    resting: bool = False
    """It waits for its next try, even as the first of its key."""
    failures: int = 0
    """Times in a row that it could not start although the message is sound."""
    requeues: int = 0
    """Times that its task ran and gave the message back."""
    cause: str = ""
    """Why it last did not finish; empty: its process died."""
    size: int = 0
    """Size of the message in bytes."""
    run: RunClaim | None = None
    """The run that must be claimed in the ledger before it starts; None: its task needs no ledger."""
    grant: Grant = Grant.NONE
    """Whether the run is claimed."""
    claimants: tuple[Any, ...] = ()
    """Earlier deliveries of this message that may hold the claim although its run has not started."""

    @property
    def unstarted(self) -> bool:
        """Whether it is here and its start is not reserved."""
        return self.stage in (Stage.WAITING, Stage.LIMITED, Stage.READY, Stage.HANDED)

    @property
    def here(self) -> bool:
        """Whether it may still start here, or its start is reserved."""
        return self.unstarted or self.stage is Stage.STARTED

    @property
    def may_hold_claim(self) -> bool:
        """Whether this delivery, or an earlier one of its message here, may hold the claim of its run."""
        return self.run is not None and self.run.once and (self.grant is not Grant.NONE or bool(self.claimants))

    @property
    def may_be_claimed(self) -> bool:
        """Whether its turn has come, or comes next, and its run is not claimed."""
        here = self.stage is Stage.READY or (self.stage is Stage.WAITING and not (self.pending or self.resting))
        return here and self.grant is Grant.NONE


@dataclass(slots=True)
class _Slot:
    live: bool = False
    bytes: int = 0
    """Bytes of the entries that have not started."""
    unstarted: dict[Entry, None] = field(default_factory=dict)
    running: dict[Entry, None] = field(default_factory=dict)


class Gate:
    """Decides which entries may start now, for all slots of a worker."""

    def __init__(self) -> None:
        self._slots: dict[SlotId, _Slot] = {}
        self._lines: dict[Hashable, deque[Entry]] = {}
        self._ready: deque[Entry] = deque()
        self._unmarked: deque[Entry] = deque()
        self._counted: dict[Entry, None] = {}
        """Entries whose next start is counted, or is being counted."""
        self.run_claims = RunClaims()
        """Entries whose run must be claimed before they start."""
        self.limited = Limited()
        """First entries of their key that wait for the rate limit of their task."""
        self.freed: list[Entry] = []
        """Entries with a claim that are gone, until `KeyClaims` collects them here."""
        self.waiting = 0
        """Entries behind a locked key."""
        self.runnable = 0
        """Entries that are ready, handed out or started."""
        self.out = 0
        """Entries handed out or started: what the execution pool holds."""
        self.bytes = 0
        """Bytes of the entries that have not started."""

    # -- slots ---------------------------------------------------------------------------------

    def open(self, slot: SlotId) -> None:
        """Admit deliveries of `slot`."""
        self._slots.setdefault(slot, _Slot()).live = True

    def is_open(self, slot: SlotId) -> bool:
        """Return whether deliveries of `slot` are admitted and may start."""
        state = self._slots.get(slot)
        return state is not None and state.live

    def kept(self, slot: SlotId) -> Collection[Any]:
        """Return the tags of `slot` that run here or await confirmation, without those adrift."""
        state = self._slots.get(slot)
        return tuple(entry.tag for entry in state.running if not entry.adrift) if state else ()

    def set_adrift(self, slot: SlotId, known: Collection[Any] = ()) -> None:
        """Set the deliveries of `slot` adrift, except those that the broker knows."""
        state = self._slots.get(slot)
        for entry in (*state.running, *state.unstarted) if state else ():
            entry.adrift = entry.adrift or entry.tag not in known

    def lose(self, slot: SlotId) -> bool:
        """Forget unstarted entries and start nothing more of `slot`; True if nothing of it runs here."""
        state = self._slots.get(slot)
        if state is None:
            return True
        state.live = False
        self._forget_unstarted(state)
        for entry in state.running:
            entry.orphan = True
        return self._tidy(slot, state)

    def recall(self, slot: SlotId) -> None:
        """Forget unstarted entries: the broker is about to put them back in their queue."""
        if state := self._slots.get(slot):
            self._forget_unstarted(state)

    def held(self, slot: SlotId) -> int:
        """Return how many entries of `slot` have not started."""
        state = self._slots.get(slot)
        return len(state.unstarted) if state else 0

    def bytes_of(self, slot: SlotId) -> int:
        """Return the bytes of the entries of `slot` that have not started."""
        state = self._slots.get(slot)
        return state.bytes if state else 0

    def holds(self, slot: SlotId) -> bool:
        """Return whether anything of `slot` runs here or awaits confirmation."""
        state = self._slots.get(slot)
        return state is not None and bool(state.running)

    def busy(self, slot: SlotId) -> bool:
        """Return whether a task of `slot` runs here; a task that awaits confirmation has ended."""
        state = self._slots.get(slot)
        return state is not None and any(entry.stage is Stage.STARTED for entry in state.running)

    def slots_running(self) -> dict[SlotId, int]:
        """Return how many tasks of each slot run here or await confirmation."""
        return {slot: len(state.running) for slot, state in self._slots.items() if state.running}

    # -- the stages of an entry ----------------------------------------------------------------

    def add(self, entry: Entry) -> bool:
        """Add a delivery; False if its slot is not open."""
        state = self._slots.get(entry.slot)
        if state is None or not state.live:
            return False
        self._hold(state, entry)
        line = self._lines.get(entry.key)
        if line is None:
            self._lines[entry.key] = deque((entry,))
            self._make_ready(entry)
        else:
            line.append(entry)
            self.waiting += 1
        return True

    def add_ended(self, entry: Entry) -> bool:
        """Add a delivery whose task has ended here before; False if its slot is not open.

        Its key stays locked until `settled`, as for any ended task, and it stays here when the slot is reopened.
        """
        state = self._slots.get(entry.slot)
        if state is None or not state.live:
            return False
        entry.stage = Stage.ENDED
        state.running[entry] = None
        self._lines.setdefault(entry.key, deque()).append(entry)
        return True

    def uncounted(self, most: int, wary: int) -> Iterator[Entry]:
        """Yield entries whose turn has come but whose start must be counted first; each is yielded once.

        At most `most` entries with a counted start are unfinished at a time. If the process dies, each counts as a
        start, so entries that only wait for the pool must not be counted. An entry with `wary` counted starts or more
        starts while no other counted entry runs: if the process dies again, that entry alone is to blame.
        """
        self._counted = dict.fromkeys(entry for entry in self._counted if _may_start(entry))
        while self._unmarked:
            entry = self._unmarked[0]
            alone = any((one.attempts or 0) >= wary for one in (entry, *self._counted))
            if entry.stage is Stage.READY and len(self._counted) >= (1 if alone else most):
                return
            self._unmarked.popleft()
            if entry.stage is Stage.READY:
                self._counted[entry] = None
                yield entry

    def start_counted(self, entry: Entry, attempts: int) -> None:
        """Note that the broker has counted the next start of `entry`."""
        entry.attempts, entry.start_counted = attempts, True
        if entry.stage is Stage.READY:
            self._ready.appendleft(entry)  # counted entries must not wait for the others

    def granted(self, entry: Entry) -> None:
        """Note that the run of `entry` is claimed: it may start when its turn comes."""
        entry.grant = Grant.HELD
        if entry.stage is Stage.READY:
            self._line_up(entry)

    def limit(self, buckets: Mapping[str, Bucket]) -> None:
        """Limit entries of these kinds from now on, including those that are ready, and no others."""
        self.limited.buckets = buckets
        ready = [one for state in self._slots.values() for one in state.unstarted if one.stage is Stage.READY]
        for entry in [one for one in ready if one.kind in buckets]:
            for turns in (self._ready, self._unmarked):
                if entry in turns:
                    turns.remove(entry)
            self.runnable -= 1
            self._make_ready(entry)

    def resume(self) -> None:
        """Let entries continue that waited for a rate limit, as far as there are tokens."""
        for entry in self.limited.take():
            self._make_ready(entry, paid=True)

    def suspects(self, slot: SlotId) -> list[Entry]:
        """Return the unstarted entries of `slot` whose start must be counted or is counted."""
        state = self._slots.get(slot)
        return [entry for entry in state.unstarted if entry.attempts is not None] if state else []

    def claimed(self, slot: SlotId) -> list[Entry]:
        """Return the unstarted entries of `slot` that may hold a claim in the ledger, also by an earlier delivery."""
        state = self._slots.get(slot)
        return [entry for entry in state.unstarted if entry.may_hold_claim] if state else []

    def has(self, keyspace: str, tag: Any) -> bool:
        """Return whether the delivery with this tag, or its message, is here, in any slot of the keyspace."""
        return any(
            entry.tag == tag or tag in entry.claimants
            for (name, _), state in self._slots.items()
            if name == keyspace
            for entry in (*state.running, *state.unstarted)
        )

    def take(self, most: int, may: Callable[[SlotId], bool] = lambda _: True) -> list[Entry]:
        """Hand out at most `most` entries whose turn it is and whose slot `may` start tasks now."""
        taken: list[Entry] = []
        passed: list[Entry] = []
        while self._ready and len(taken) < most:
            entry = self._ready.popleft()
            if entry.stage is not Stage.READY:
                continue
            if not may(entry.slot):
                passed.append(entry)
                continue
            entry.stage = Stage.HANDED
            entry.turn += 1
            self.out += 1
            taken.append(entry)
        self._ready.extendleft(reversed(passed))
        return taken

    def start(self, entry: Entry, turn: int, *, trusted: bool) -> bool:
        """Reserve the start of an entry that was handed out; False: it must not start, the caller forgets it."""
        if entry.stage is not Stage.HANDED or entry.turn != turn or not trusted:
            return False
        state = self._slots[entry.slot]
        if not state.live:
            return False
        entry.stage = Stage.STARTED
        self._move_to_running(state, entry)
        return True

    def put_back(self, entry: Entry, turn: int) -> None:
        """Make an entry that was handed out but did not start ready again."""
        if entry.stage is Stage.HANDED and entry.turn == turn:
            entry.stage = Stage.READY
            self.out -= 1
            self._ready.appendleft(entry)

    def put_back_all(self) -> None:
        """Make all entries that were handed out but did not start ready again, in order: their holders dropped them."""
        handed = [e for s in self._slots.values() for e in s.unstarted if e.stage is Stage.HANDED]
        for entry in sorted(handed, key=lambda e: (e.slot[0], str(e.slot[1]), e.tag), reverse=True):
            self.put_back(entry, entry.turn)

    def end(self, entry: Entry) -> bool:
        """End an entry whose task has released its key; False if it had before. The key stays locked till `settled`."""
        if entry.stage is Stage.STARTED:
            pass
        elif entry.stage in (Stage.HANDED, Stage.READY, Stage.LIMITED):
            self._move_to_running(self._slots[entry.slot], entry)
            if entry.stage is not Stage.HANDED:
                self.out += 1
            if entry.stage is Stage.LIMITED:
                self.runnable += 1
                self.limited.drop(entry)
        else:
            return False
        entry.stage = Stage.ENDED
        self.out -= 1
        self.runnable -= 1
        line = self._lines.get(entry.key)
        if line is not None and len(line) > 1 and line[0] is entry:
            self.run_claims.add(line[1])
        return True

    def clear(self, entry: Entry, token: int) -> None:
        """Note that the key of `entry` is claimed: it may start when its turn comes."""
        entry.pending, entry.token = False, token
        if entry.stage is Stage.WAITING and self._lines[entry.key][0] is entry:
            self._promote(entry)

    def withdraw(self, entry: Entry) -> bool:
        """Take an unstarted entry out of the queue of its key, wherever it stands; False if it has started.

        Its message is settled under this tenure, like that of an ended task, and locks nothing meanwhile.
        """
        if not entry.unstarted:
            return False
        self._move_to_running(self._slots[entry.slot], entry)
        self._leave_unstarted(entry)
        self._prune(entry.key)
        entry.stage, entry.withdrawn = Stage.ENDED, True
        return True

    def behind(self, entry: Entry) -> list[Entry]:
        """Return the entries that wait for the disposition of an ended entry."""
        line = self._lines.get(entry.key, ()) if entry.stage is Stage.ENDED else ()
        return [other for other in line if other.stage is Stage.WAITING]

    def is_behind_adrift(self, entry: Entry) -> bool:
        """Return whether an earlier entry of its key is adrift: this may be the same message, delivered again."""
        return (first := self._ahead_of(entry)) is not None and first.adrift

    def is_behind_unbegun(self, entry: Entry) -> bool:
        """Return whether the start of an earlier entry of its key is reserved here, but no run of it has begun yet."""
        first = self._ahead_of(entry)
        return first is not None and first.stage is Stage.STARTED and not first.began

    def end_waiting(self, entry: Entry) -> bool:
        """End a waiting entry, as `end` does; False if it does not wait."""
        if entry.stage is not Stage.WAITING:
            return False
        self._move_to_running(self._slots[entry.slot], entry)
        entry.stage = Stage.ENDED
        self.waiting -= 1
        return True

    def again(self, entry: Entry, *, counted: bool) -> bool:
        """Give a started task that did not finish another turn in its place; False if its slot is lost.

        If `counted`, the broker must count the next start first. The same holds for an orphan, even if the slot is open
        here again, and for an entry adrift: the broker refuses to count if the message does not belong to this tenure,
        and `forget` then frees the key.
        """
        if entry.stage is not Stage.STARTED:
            return True
        state = self._slots[entry.slot]
        self.out -= 1
        self.runnable -= 1
        del state.running[entry]
        if not state.live:
            self._leave_line(entry)
            self._tidy(entry.slot, state)
            return False
        self._hold(state, entry)
        if entry.run is not None and (entry.orphan or entry.adrift):
            self.run_claims.again(entry)
        if entry.run is not None and entry.run.once:
            pass  # its claim is what counts
        elif counted:
            entry.attempts, entry.start_counted = entry.attempts or 0, False
        elif entry.orphan or entry.adrift:
            entry.attempts, entry.start_counted = (
                max(0, (entry.attempts or 0) - 1),
                False,
            )  # the same start, counted again
        else:
            entry.start_counted = True
        self._make_ready(entry)
        return True

    def rest(self, entry: Entry, turn: int) -> bool:
        """Keep the entry in its place until `rouse`; False if its slot is lost and nothing of it is left."""
        entry.resting = True
        if entry.stage is Stage.STARTED:
            return self.again(entry, counted=False)
        if entry.stage is Stage.HANDED and entry.turn == turn:
            self.out -= 1
            self.runnable -= 1
            self._make_ready(entry)
        return True

    def hold_back(self, entry: Entry) -> None:
        """Let an entry rest whose start could not be counted or claimed; meanwhile others may be."""
        if entry.stage is Stage.READY:
            entry.resting, entry.stage = True, Stage.WAITING
            self.runnable -= 1
            self.waiting += 1

    def rouse(self, entry: Entry) -> None:
        """Let the entry have its turn again."""
        entry.resting = False
        if entry.stage is Stage.WAITING and self._lines[entry.key][0] is entry:
            self._promote(entry)

    def forget(self, entry: Entry) -> None:
        """Forget an entry whose start the broker refused to count or claim: the message is no longer ours."""
        if entry.stage is Stage.READY:
            self._let_go(self._slots[entry.slot], entry)
            self._leave_unstarted(entry)
            self._prune(entry.key)

    def settled(self, entry: Entry) -> bool:
        """Free the key: the broker has answered the disposition. True if the entry's lost slot is empty now."""
        if entry.stage is not Stage.ENDED:
            return False
        state = self._slots[entry.slot]
        del state.running[entry]
        if entry.withdrawn:
            entry.stage = Stage.GONE
        else:
            self._leave_line(entry)
        return not state.live and self._tidy(entry.slot, state)

    # -- figures -------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """Number of keys that are locked or waited for."""
        return len(self._lines)

    @property
    def has_ready(self) -> bool:
        """Whether entries can be taken."""
        return bool(self._ready)

    @property
    def has_uncounted(self) -> bool:
        """Whether entries wait to be counted, and therefore for counted entries to end."""
        return bool(self._unmarked)

    # -- inside --------------------------------------------------------------------------------

    def _make_ready(self, entry: Entry, *, paid: bool = False) -> None:
        if entry.pending or entry.resting:
            entry.stage = Stage.WAITING
            self.waiting += 1
            return
        buckets = self.limited.buckets
        if buckets and not paid and entry.kind in buckets:
            entry.stage = Stage.LIMITED
            self.limited.hold(entry)
            return
        entry.stage = Stage.READY
        self.runnable += 1
        self._line_up(entry)

    def _line_up(self, entry: Entry) -> None:
        """Let an entry that is ready wait for its claim, for its counted start, or to be taken."""
        if self.run_claims.needs(entry):
            self.run_claims.add(entry)
        elif entry.attempts is not None and not entry.start_counted:
            self._counted.pop(entry, None)  # otherwise it would wait for itself
            self._unmarked.append(entry)
        else:
            self._ready.append(entry)

    def _hold(self, state: _Slot, entry: Entry) -> None:
        state.unstarted[entry] = None
        state.bytes += entry.size
        self.bytes += entry.size

    def _let_go(self, state: _Slot, entry: Entry) -> None:
        del state.unstarted[entry]
        state.bytes -= entry.size
        self.bytes -= entry.size

    def _move_to_running(self, state: _Slot, entry: Entry) -> None:
        self._let_go(state, entry)
        state.running[entry] = None

    def _forget_unstarted(self, state: _Slot) -> None:
        for entry in state.unstarted:
            self._leave_unstarted(entry)
        for entry in state.unstarted:
            self._prune(entry.key)
        state.unstarted.clear()
        self.bytes -= state.bytes
        state.bytes = 0

    def _leave_unstarted(self, entry: Entry) -> None:
        if entry.stage is Stage.WAITING:
            self.waiting -= 1
        elif entry.stage is Stage.LIMITED:
            self.limited.drop(entry)
        else:
            self.runnable -= 1
            self.out -= entry.stage is Stage.HANDED
        self._be_gone(entry)

    def _ahead_of(self, entry: Entry) -> Entry | None:
        """Return the first entry of the key, unless that is this one."""
        line = self._lines.get(entry.key)
        return line[0] if line is not None and line[0] is not entry else None

    def _prune(self, key: Hashable) -> None:
        # A key may outlive a slot: its running task stays first, and entries of a later tenure stay behind it.
        line = self._lines.get(key)
        if line is None:
            return
        first = line[0]
        kept = deque(entry for entry in line if entry.stage is not Stage.GONE)
        if not kept:
            del self._lines[key]
            return
        self._lines[key] = kept
        if kept[0] is not first:
            self._promote(kept[0])

    def _be_gone(self, entry: Entry) -> None:
        entry.stage = Stage.GONE
        if entry.claim is not None:
            self.freed.append(entry)

    def _leave_line(self, entry: Entry) -> None:
        self._be_gone(entry)
        line = self._lines[entry.key]
        first = line[0]
        line.remove(entry)  # it is the first, unless it had ended before it was delivered
        if not line:
            del self._lines[entry.key]
        elif first is entry:
            self._promote(line[0])

    def _promote(self, entry: Entry) -> None:
        # Otherwise it has ended, or waits for its claim or its next try.
        if entry.stage is Stage.WAITING and not (entry.pending or entry.resting):
            self.waiting -= 1
            self._make_ready(entry)

    def _tidy(self, slot: SlotId, state: _Slot) -> bool:
        if state.running:
            return False
        if not state.live and not state.unstarted:
            self._slots.pop(slot, None)
        return True


def _may_start(entry: Entry) -> bool:
    """Return whether a counted entry may start or runs; an entry that rests until its next try is included."""
    return entry.stage in (Stage.READY, Stage.HANDED, Stage.STARTED) or (
        entry.stage is Stage.WAITING and entry.start_counted
    )
