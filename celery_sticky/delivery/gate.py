"""The gate of a worker: one task of a key at a time, in order; other keys overtake.

Pure: no clock, no threads. Whoever shares a gate between threads holds one lock around every call; that this one lock
covers both `start` and `lose` is what makes a start a reservation: once a slot is lost nothing of it starts any more.

An entry's life, and what ends it:

    WAITING --(its key is free)--> READY --take--> HANDED --start--> STARTED --end--> ENDED --settled--> gone
       |     --> LIMITED --(a token)-->^
       |                             |                |                 |
       +---- lose / recall: forgotten, the broker still has it ----+    +-- again: READY, the key stays locked

What has ended here under an earlier delivery is ENDED before its turn, wherever it stands in the line of its key.
A key is locked from READY until the broker has confirmed the verdict: were the next task started earlier, a crash in
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
from celery_sticky.keys import KeyId, SlotId


class Stage(StrEnum):
    """Where an entry is in its life."""

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
    """Names the delivery at the broker. Opaque here, but for its order: that of fetching."""
    key: Hashable
    """What is locked: keyspace and key for a serial task, the task's id for one that only wants affinity."""
    content: Any = None
    """The message, opaque here."""
    attempts: int | None = None
    """Starts marked at the broker; None: this delivery needs no mark before it starts."""
    start_counted: bool = False
    """Whether the coming start is marked already."""
    stage: Stage = Stage.WAITING
    turn: int = 0
    """Counts hand-outs: a start that names an older turn is refused."""
    orphan: bool = False
    """Its slot was lost while it ran: others may have had the message since."""
    adrift: bool = False
    """The broker does not know this delivery: its message is settled, or comes again under another tag."""
    claim: KeyId | None = None
    """The key that this worker must have claimed before it may start; None: owning the slot is enough."""
    pending: bool = False
    """The key is not claimed yet: it waits, also at the head of its line."""
    token: int = 0
    """The fencing token of the claim."""
    base: int = 0
    """Of `attempts`, those marked in queues that it was moved from."""
    kind: str = ""
    """What rate limits go by: the name of its task."""
    withdrawn: bool = False
    """It was taken out of its line: its message goes elsewhere."""
    resting: bool = False
    """It waits for its next try, also at the head of its line."""
    failures: int = 0
    """How often in a row it could not be started though nothing is wrong with it."""
    requeues: int = 0
    """How often its task ran and gave the message back."""
    cause: str = ""
    """Why it last came to no end; empty: its process died."""
    size: int = 0
    """Bytes of the message."""


@dataclass(slots=True)
class _Slot:
    live: bool = False
    bytes: int = 0
    """Of what has not started."""
    unstarted: dict[Entry, None] = field(default_factory=dict)
    running: dict[Entry, None] = field(default_factory=dict)


class Gate:
    """Who may start now, for all slots of a worker."""

    def __init__(self) -> None:
        self._slots: dict[SlotId, _Slot] = {}
        self._lines: dict[Hashable, deque[Entry]] = {}
        self._ready: deque[Entry] = deque()
        self._unmarked: deque[Entry] = deque()
        self._counted: list[Entry] = []
        self.limited = Limited()
        """Entries at the head of their line that wait for the rate limit of their task."""
        self.freed: list[Entry] = []
        """Entries with a claim that are gone, until somebody takes them from here."""
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
        """Let deliveries of `slot` in."""
        self._slots.setdefault(slot, _Slot()).live = True

    def is_open(self, slot: SlotId) -> bool:
        """Whether deliveries of `slot` are let in and may start."""
        state = self._slots.get(slot)
        return state is not None and state.live

    def kept(self, slot: SlotId) -> Collection[Any]:
        """Return the tags of `slot` that run here or whose verdict is not confirmed yet, but for those adrift."""
        state = self._slots.get(slot)
        return tuple(entry.tag for entry in state.running if not entry.adrift) if state else ()

    def set_adrift(self, slot: SlotId, known: Collection[Any] = ()) -> None:
        """Of what runs here or awaits its confirmation the broker knows these tags, and no others."""
        state = self._slots.get(slot)
        for entry in (*state.running, *state.unstarted) if state else ():
            entry.adrift = entry.adrift or entry.tag not in known

    def lose(self, slot: SlotId) -> bool:
        """Forget what has not started, start nothing more of `slot`; True if nothing of it runs here."""
        state = self._slots.get(slot)
        if state is None:
            return True
        state.live = False
        self._forget_unstarted(state)
        for entry in state.running:
            entry.orphan = True
        return self._tidy(slot, state)

    def recall(self, slot: SlotId) -> None:
        """Forget what has not started: the broker is about to put it back in its queue."""
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
        """Whether anything of `slot` runs here or awaits its confirmation."""
        state = self._slots.get(slot)
        return state is not None and bool(state.running)

    def busy(self, slot: SlotId) -> bool:
        """Whether a task of `slot` runs here; one that only awaits its confirmation has ended."""
        state = self._slots.get(slot)
        return state is not None and any(entry.stage is Stage.STARTED for entry in state.running)

    def slots_running(self) -> dict[SlotId, int]:
        """Return how many tasks of each slot run here or await their confirmation."""
        return {slot: len(state.running) for slot, state in self._slots.items() if state.running}

    # -- the way of an entry -------------------------------------------------------------------

    def add(self, entry: Entry) -> bool:
        """Take in a delivery; False if its slot is not open (any more)."""
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
        """Take in a delivery whose task has ended here before; False if its slot is not open (any more).

        Its key stays locked until `settled`, as that of any task which has ended, and it stays here over an opening.
        """
        state = self._slots.get(entry.slot)
        if state is None or not state.live:
            return False
        entry.stage = Stage.ENDED
        state.running[entry] = None
        self._lines.setdefault(entry.key, deque()).append(entry)
        return True

    def uncounted(self, most: int, wary: int) -> Iterator[Entry]:
        """Yield entries whose turn has come but whose start must be marked first; each is yielded once.

        No more than `most` are marked at a time without having ended: a mark counts as a start should the process die,
        so there must be none of entries that only wait for the pool. An entry with `wary` marks or more starts when no
        other marked one runs: if the process dies again, it alone is to blame.
        """
        self._counted = [entry for entry in self._counted if _may_start(entry)]
        while self._unmarked:
            entry = self._unmarked[0]
            alone = any((one.attempts or 0) >= wary for one in (entry, *self._counted))
            if entry.stage is Stage.READY and len(self._counted) >= (1 if alone else most):
                return
            self._unmarked.popleft()
            if entry.stage is Stage.READY:
                self._counted.append(entry)
                yield entry

    def start_counted(self, entry: Entry, attempts: int) -> None:
        """The broker has counted the coming start of `entry`."""
        entry.attempts, entry.start_counted = attempts, True
        if entry.stage is Stage.READY:
            self._ready.appendleft(entry)  # what is marked must not wait for what need not be

    def limit(self, buckets: Mapping[str, Bucket]) -> None:
        """Limit entries of these kinds from now on, those too whose turn has come, and no others."""
        self.limited.buckets = buckets
        for turns in (self._ready, self._unmarked):
            for entry in [one for one in turns if one.stage is Stage.READY and one.kind in buckets]:
                turns.remove(entry)
                self.runnable -= 1
                self._make_ready(entry)

    def resume(self) -> None:
        """Let entries go on that waited for a rate limit, as far as there are tokens."""
        for entry in self.limited.take():
            self._make_ready(entry, paid=True)

    def suspects(self, slot: SlotId) -> list[Entry]:
        """Return the entries of `slot` that have not started and whose start has to be marked, or is."""
        state = self._slots.get(slot)
        return [entry for entry in state.unstarted if entry.attempts is not None] if state else []

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
        """Reserve the start of a handed out entry; False: it must not start, the caller forgets it."""
        if entry.stage is not Stage.HANDED or entry.turn != turn or not trusted:
            return False
        state = self._slots[entry.slot]
        if not state.live:
            return False
        entry.stage = Stage.STARTED
        self._move_to_running(state, entry)
        return True

    def put_back(self, entry: Entry, turn: int) -> None:
        """Make a handed out entry that did not start ready again."""
        if entry.stage is Stage.HANDED and entry.turn == turn:
            entry.stage = Stage.READY
            self.out -= 1
            self._ready.appendleft(entry)

    def put_back_all(self) -> None:
        """Make everything handed out but not started ready again, in order: those who held it have dropped it."""
        handed = [e for s in self._slots.values() for e in s.unstarted if e.stage is Stage.HANDED]
        for entry in sorted(handed, key=lambda e: (e.slot[0], str(e.slot[1]), e.tag), reverse=True):
            self.put_back(entry, entry.turn)

    def end(self, entry: Entry) -> bool:
        """The task of `entry` has let go of its key; False if it had before. The key stays locked until `settled`."""
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
        return True

    def clear(self, entry: Entry, token: int) -> None:
        """The key of `entry` is claimed: it may start when its turn comes."""
        entry.pending, entry.token = False, token
        if entry.stage is Stage.WAITING and self._lines[entry.key][0] is entry:
            self._promote(entry)

    def withdraw(self, entry: Entry) -> bool:
        """Take an entry that has not started out of its line, wherever it stands; False if it has.

        Its message is settled under this tenure, as that of an ended one, and locks nothing meanwhile.
        """
        if entry.stage not in (Stage.WAITING, Stage.LIMITED, Stage.READY, Stage.HANDED):
            return False
        self._move_to_running(self._slots[entry.slot], entry)
        self._leave_unstarted(entry)
        self._prune(entry.key)
        entry.stage, entry.withdrawn = Stage.ENDED, True
        return True

    def behind(self, entry: Entry) -> list[Entry]:
        """Return what waits for the verdict of an entry that has ended."""
        line = self._lines.get(entry.key, ()) if entry.stage is Stage.ENDED else ()
        return [other for other in line if other.stage is Stage.WAITING]

    def end_waiting(self, entry: Entry) -> bool:
        """An entry that waits is done with, as by `end`; False if it does not wait."""
        if entry.stage is not Stage.WAITING:
            return False
        self._move_to_running(self._slots[entry.slot], entry)
        entry.stage = Stage.ENDED
        self.waiting -= 1
        return True

    def again(self, entry: Entry, *, counted: bool) -> bool:
        """The started task came to no end of its own: give it another turn in its place; False if its slot is lost.

        Counted, its next start must be marked at the broker before. So must that of an orphan, even if the slot is open
        here again, and of what is adrift: the broker refuses the mark if the message is not this tenure's, and `forget`
        then frees the key.
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
        if counted:
            entry.attempts, entry.start_counted = entry.attempts or 0, False
        elif entry.orphan or entry.adrift:
            entry.attempts, entry.start_counted = (
                max(0, (entry.attempts or 0) - 1),
                False,
            )  # the same start, marked anew
        else:
            entry.start_counted = True
        if entry in self._counted and not entry.start_counted:
            self._counted.remove(entry)
        self._make_ready(entry)
        return True

    def rest(self, entry: Entry, turn: int) -> bool:
        """The entry keeps its place and has its next turn at `rouse`; False if its slot is lost and nothing is left."""
        entry.resting = True
        if entry.stage is Stage.STARTED:
            return self.again(entry, counted=False)
        if entry.stage is Stage.HANDED and entry.turn == turn:
            self.out -= 1
            self.runnable -= 1
            self._make_ready(entry)
        return True

    def hold_back(self, entry: Entry) -> None:
        """The start of this entry could not be marked: it rests, and others may be marked meanwhile."""
        if entry.stage is Stage.READY:
            entry.resting, entry.stage = True, Stage.WAITING
            self.runnable -= 1
            self.waiting += 1

    def rouse(self, entry: Entry) -> None:
        """It may have its turn again."""
        entry.resting = False
        if entry.stage is Stage.WAITING and self._lines[entry.key][0] is entry:
            self._promote(entry)

    def forget(self, entry: Entry) -> None:
        """The broker has refused to mark the start: the message is not ours any more."""
        if entry.stage is Stage.READY:
            self._let_go(self._slots[entry.slot], entry)
            self._leave_unstarted(entry)
            self._prune(entry.key)

    def settled(self, entry: Entry) -> bool:
        """The broker has confirmed (or refused) the verdict: free the key. True if its lost slot is empty now."""
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
        """How many keys are locked or waited for."""
        return len(self._lines)

    @property
    def has_ready(self) -> bool:
        """Whether entries may be taken."""
        return bool(self._ready)

    @property
    def has_uncounted(self) -> bool:
        """Whether entries wait for a mark, and so for those that have one to end."""
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
        if entry.attempts is None or entry.start_counted:
            self._ready.append(entry)
        else:
            self._unmarked.append(entry)

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

    def _prune(self, key: Hashable) -> None:
        # A key may outlive a slot: its running task stays at the head, and entries of a later tenure stay behind it.
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
        line.remove(entry)  # all but what had ended before it came stand in front
        if not line:
            del self._lines[entry.key]
        elif first is entry:
            self._promote(line[0])

    def _promote(self, entry: Entry) -> None:
        # Else it has ended, or waits for its claim or its next try.
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
    """Whether a marked entry may start, or runs: also one that rests until its next try."""
    return entry.stage in (Stage.READY, Stage.HANDED, Stage.STARTED) or (
        entry.stage is Stage.WAITING and entry.start_counted
    )
