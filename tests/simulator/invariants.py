"""The invariants, each with a name. The witness checks every step that could break one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.queues.base import Disposition, Fetched, Outcome, Tenure
from celery_sticky.slots import Slot

if TYPE_CHECKING:
    from simulator.ledger_witness import LedgerWitness
    from simulator.pool import SimulatedRun
    from simulator.process import Process

HELD = (SlotState.OPENING, SlotState.OPEN, SlotState.STOPPING, SlotState.JOBS_LEFT, SlotState.STOPPING_JOBS)


class Invariant(StrEnum):
    """The name of a promise, as shown in a report when it is broken."""

    TWO_OWNERS = "two-owners"
    """Two members trust their lease and hold one slot."""
    OVERLAP_TRUSTED = "overlap-trusted"
    """Two tasks of a key run at the same time, in workers that trust their lease."""
    OVERLAP_ZOMBIE = "overlap-zombie"
    """… one of them in a worker whose trust has ended."""
    OVERLAP_ORPHAN = "overlap-orphan"
    """… one of them in a child of a dead worker."""
    OVERLAP_SAME_WORKER = "overlap-same-worker"
    """… both in one worker."""
    FIRST_RUN_ORDER = "first-run-order"
    """A task runs for the first time after a later one of its key has run."""
    RUN_AFTER_LATER = "run-after-later"
    """A task runs again after a later one of its key has run."""
    RERUN_WITHOUT_FAULT = "rerun-without-fault"
    """A finished task runs again, though the worker that finished it met no fault and could report it to the broker
    while it had the slot; or it runs again in the very worker that could not report it."""
    RUN_AFTER_SETTLED = "run-after-settled"
    """A task runs after the broker settled its message."""
    ACKED_NEVER_RUN = "acked-never-run"
    """A message is acknowledged but its task never finished; or is buried without having asked for it or ever run."""
    LOST = "lost"
    """The broker has lost a message."""
    SETTLED_ANOTHER = "settled-another"
    """A disposition of one delivery was applied to another message."""
    NOT_DRAINED = "not-drained"
    """Messages are left, long after the last fault."""
    NOT_LEFT = "not-left"
    """A worker that was told to leave is still there, though it runs nothing and no other fault happened."""
    NOT_OWNED = "not-owned"
    """Slots are not open at their owner under the fence, long after the last fault."""
    NOT_SETTLED = "not-settled"
    """Members do not agree on a settled view, long after the last fault."""
    EPOCH_BACK = "epoch-back"
    """A slot's epoch fell."""
    EPOCH_SHARED = "epoch-shared"
    """Two members had a slot under one epoch."""
    FENCE_BACK = "fence-back"
    """A slot's fence fell, or stood still, at an opening."""
    FENCE_SHARED = "fence-shared"
    """Two members opened a slot under one epoch."""
    STALE_START = "stale-start"
    """A task started under a lower epoch than one before in its slot; or of its key, where keys are placed."""
    FORMER_TENURE = "former-tenure"
    """The broker, or the job store, carried out a request of a tenure other than the fence's."""
    NEEDLESS_EVICTION = "needless-eviction"
    """A member was evicted that met no fault, or was evicted too early."""
    UNBALANCED_PLAN = "unbalanced-plan"
    """A plan gives a member more or less than its share by weight, by one slot or more."""
    VERSION_GAP = "version-gap"
    """A view does not follow the one before it, or a member went back to an older one."""
    TWO_CLAIMS = "two-claims"
    """Two members trust their lease and their claim of one key, and each has a message of it that runs or may start."""
    CLAIM_BACK = "claim-back"
    """The token of a key's claim fell, or did not grow."""
    CLAIM_SHARED = "claim-shared"
    """Two members have claimed a key under one token."""
    MISDIRECTED = "misplaced"
    """A member claimed a key that at that moment belonged to another one, or had no place."""
    UNCLAIMED_START = "unclaimed-start"
    """A task started in a worker that has not claimed its key."""
    RUN_ELSEWHERE = "run-elsewhere"
    """A task starts in a worker that has not been the place of its key for over a second, though there was no fault and
    no request was lost."""
    MOVED_OUT_OF_ORDER = "moved-out-of-order"
    """A message is passed on before one of its key that came to the same queue earlier and never started; or it is
    passed on to the queue it is in."""
    NOT_GIVEN_BACK = "not-given-back"
    """Claims are left on keys that have no work, long after the last fault."""
    UNTOLD_LOSS = "untold-loss"
    """A member gave a slot away before its application was told that it is lost."""
    UNTOLD_PIN = "untold-pin"
    """A worker lost a pin that it did not remove, and was not told, long after the last fault."""
    TWO_RUNS = "two-runs"
    """Two runs of one job are under way."""
    RUN_AFTER_END = "run-after-end"
    """A job starts whose record the store has removed."""
    DRAINED_EARLY = "drained-early"
    """A slot's jobs are reported as gone while one of them runs."""
    JOB_LOST = "job-lost"
    """A job's record was removed, or shows it as started, without a reason."""
    INNOCENT_GIVEN_UP = "innocent-given-up"
    """A job is given up for killing its host, but it never did that."""
    NOTE_LOST = "note-lost"
    """A notification never reached its job, though that is still wanted."""
    NOTE_ELSEWHERE = "note-elsewhere"
    """A run has a notification of another dispatch."""
    NOTE_OUT_OF_ORDER = "note-out-of-order"
    """A job has a notification for the first time after a later one."""
    NOT_RUNNING = "not-running"
    """A job that is wanted does not run, or is not recorded as running, long after the last fault."""
    STOOD_STILL = "stood-still"
    """A wanted job was stopped for another worker, and that did not start it soon, though there was no fault and no
    request was lost."""
    NOT_STOPPED = "not-stopped"
    """A job that is not wanted is still there, long after the last fault."""
    RUN_TWICE = "run-twice"
    """A run of a task that runs at most once begins a second time."""
    RUN_AFTER_FINISHED = "run-after-finished"
    """A run begins that has finished, perhaps as another copy of the message, and the broker has confirmed that."""
    RUN_NOT_CLAIMED = "run-not-claimed"
    """A run of a task that runs at most once begins in a worker that has not claimed it in the ledger."""
    NO_END = "no-end"
    """All messages of a task are gone, but no run of it finished, and none is buried."""
    DISCARDED_ORIGINAL = "discarded-original"
    """A message is discarded as a copy though its run has neither finished nor is claimed."""
    FALSE_ALARM = "false-alarm"
    """A run is buried as abandoned that never began, and no fault explains it."""
    MANY_LOST = "many-lost"
    """A kill loses more runs that did not begin than a worker may claim ahead."""
    OPEN_CLAIM = "open-claim"
    """A run is claimed in the ledger though nothing of it is left."""
    ERROR = "error"
    """A part met an unexpected error."""
    REFUSED = "refused"
    """A worker was refused without reason."""


class Violation(AssertionError):
    """An invariant was broken."""

    def __init__(self, invariant: Invariant, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(slots=True)
class Progress:
    """The state of one task."""

    slot: Slot
    key: str = ""
    """Only in a placed keyspace."""
    known_at: float = 0.0
    """Its sender read the placement of its key at this time, or later."""
    place: int = 0
    """Its position in the order in which the broker took the messages of its key and priority; 0: none yet."""
    came: int = 0
    """Its position in the order in which messages came to their current queues; 0: it is deferred."""
    runs: int = 0
    finished_by: Process | None = None
    finished_at: float = 0.0
    cut_off: bool = False
    """Its worker finished it but lost the slot while its broker connection was broken, before reporting it."""
    buried: bool = False
    """It asked to be buried."""
    messages: int = 1
    """Messages of it that are not settled: it may have been published again."""
    settled: bool = False
    gone_back: bool = False
    """The broker lost something that it had confirmed about it; that it runs again, and when, is no fault."""
    unsettled: bool = False
    """The broker was rolled back before it was settled, or could not settle it: only the worker that finishes it knows
    that."""
    forgotten: bool = False
    """The broker was rolled back to before it was published: only a worker that fetched it has it."""

    @property
    def confirmed(self) -> tuple[object, ...]:
        """Everything that the broker has confirmed about it."""
        return (self.slot, self.place, self.came, self.settled)


@dataclass(slots=True)
class Witness:
    """Checks every step, and raises if it breaks an invariant."""

    slots: int
    tasks: dict[bytes, Progress] = field(default_factory=dict)
    """By message."""
    names: dict[bytes, str] = field(default_factory=dict)
    begun: int = 0
    """The number of runs so far."""
    evicted: list[str] = field(default_factory=list)
    ledger: LedgerWitness | None = None
    """None: no task uses the ledger of runs."""
    _finished: set[bytes] = field(default_factory=set)
    """Messages of which a run has finished."""
    _places: int = 0
    _highest: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    _running: dict[int, list[SimulatedRun]] = field(default_factory=lambda: defaultdict(list))
    _books: dict[Slot, int] = field(default_factory=lambda: defaultdict(int))
    _fences: dict[Slot, Tenure] = field(default_factory=dict)
    _started: dict[Slot | str, tuple[int, str]] = field(default_factory=dict)
    _copies: dict[bytes, Progress] = field(default_factory=dict)

    # -- the broker ----------------------------------------------------------------------------

    def publishes(
        self, body: bytes, slot: Slot, name: str, *, waits: bool, key: str = "", known_at: float = 0.0
    ) -> None:
        """The broker has taken a message; one that `waits` for its time has no place yet."""
        place = 0 if waits else self._next_place()
        if (known := self.tasks.get(body)) is not None:
            known.messages, known.settled = known.messages + 1, False
        else:
            self.tasks[body] = Progress(slot, key, known_at, place, came=place)
        self.names[body] = name
        self._books[slot] += 1
        if self.ledger is not None:
            self.ledger.publishes(body)

    def comes_due(self, body: bytes) -> None:
        """A deferred message takes its place."""
        progress = self.tasks[body]
        progress.place = progress.came = self._next_place()

    def retries(self, old: bytes, new: bytes) -> None:
        """A run asked for a retry: its task has not finished, whatever an earlier run did.

        The broker may never hear of it. An earlier run of the old message that has finished may then still settle it.
        """
        self.replaces(old, new)
        self.tasks[new].finished_by = None

    def replaces(self, old: bytes, new: bytes) -> None:
        """A message takes the place of another one of the same task."""
        self.tasks[new], self.names[new] = self.tasks[old], self.names[old]

    def _next_place(self) -> int:
        self._places += 1
        return self._places

    def opens(self, tenure: Tenure) -> None:
        """The broker has set a fence."""
        old = self._fences.get(tenure.slot)
        self._fences[tenure.slot] = tenure
        if old is None:
            return
        if tenure.epoch == old.epoch and tenure.incarnation != old.incarnation:
            raise Violation(Invariant.FENCE_SHARED, f"slot {tenure.slot}: {tenure} after {old}")
        if tenure.epoch < old.epoch or (tenure.epoch == old.epoch and tenure.open_count <= old.open_count):
            raise Violation(Invariant.FENCE_BACK, f"slot {tenure.slot}: {tenure} after {old}")

    def settles(
        self, disposition: Disposition, fence: Tenure | None, body: bytes, *, meant: bytes | None = None
    ) -> None:
        """The broker has confirmed a disposition about this message; who sent it `meant` this one."""
        if meant is not None and meant != body:
            text = f"{disposition.outcome} of {self.names[meant]} was done to {self.names[body]}"
            raise Violation(Invariant.SETTLED_ANOTHER, text)
        if disposition.tenure != fence:
            raise Violation(
                Invariant.FORMER_TENURE, f"{disposition.outcome} by {disposition.tenure}, the fence is {fence}"
            )
        ran = body in self._finished
        of_ledger = self.ledger is not None and self.ledger.settles(disposition, body, self.names[body], ran=ran)
        if disposition.outcome not in (Outcome.ACK, Outcome.BURY):
            return
        progress = self.tasks[body]
        asked = of_ledger or (ran if disposition.outcome is Outcome.ACK else self._may_be_buried(progress))
        if not asked:
            raise Violation(Invariant.ACKED_NEVER_RUN, f"{self.names[body]}: {disposition.outcome}")
        progress.messages -= 1
        progress.settled = progress.messages <= 0
        self._books[disposition.tenure.slot] -= 1

    def cannot_settle(self, body: bytes) -> None:
        """The broker could not apply a disposition of this message, which its worker sends again later."""
        self.tasks[body].unsettled = True

    def moves(self, disposition: Disposition, body: bytes, left: Collection[bytes]) -> None:
        """The broker has put a message into another queue; these of its priority are `left` where it was."""
        moved = self.tasks[body]
        if disposition.to == disposition.tenure.slot:
            text = f"{self.names[body]} goes to the back of {disposition.to}, where it stood"
            raise Violation(Invariant.MOVED_OUT_OF_ORDER, text)
        for other in left:
            behind = self.tasks[other]
            if behind.key == moved.key and 0 < behind.came < moved.came and not behind.runs:
                text = f"{self.names[body]} goes to {disposition.to} before {self.names[other]}"
                raise Violation(Invariant.MOVED_OUT_OF_ORDER, text)
        self.replaces(body, disposition.body or body)
        moved.slot, moved.came = disposition.to, self._next_place()
        self._books[disposition.tenure.slot] -= 1
        self._books[disposition.to] += 1

    def _may_be_buried(self, progress: Progress) -> bool:
        return progress.buried or progress.runs > 0

    def brings(self, fetched: Fetched, fences: dict[Slot, Tenure | None]) -> None:
        """The broker has brought deliveries under these fences."""
        for delivery in fetched.deliveries:
            if delivery.tenure != (fence := fences[delivery.tenure.slot]):
                raise Violation(Invariant.FORMER_TENURE, f"fetched by {delivery.tenure}, the fence is {fence}")

    def takes_copy(self) -> None:
        """Somebody copies the broker's data."""
        self._copies = {body: replace(progress) for body, progress in self.tasks.items()}

    def goes_back(self, before: Mapping[bytes, Slot], now: Mapping[bytes, Slot], fences: Mapping[Slot, Tenure]) -> None:
        """The broker goes on with that copy: these messages stood in its queues before, and stand there now."""
        lost = {id(self.tasks[body]): self.tasks[body] for body in before}
        for body in now:
            progress, copy = self.tasks[body], self._copies[body]
            lost.pop(id(progress), None)
            if body not in before or progress.confirmed != copy.confirmed:
                progress.gone_back = True
            progress.slot, progress.place, progress.came = copy.slot, copy.place, copy.came
            progress.settled = False
            progress.unsettled = True
        for progress in lost.values():
            progress.settled = progress.forgotten = True
        self._fences = dict(fences)
        self._books.clear()
        for slot in now.values():
            self._books[slot] += 1

    def counts(self, slot: Slot, there: int) -> None:
        """This many messages of a slot are at the broker."""
        if there != self._books[slot]:
            raise Violation(Invariant.LOST, f"slot {slot} has {there} messages and should have {self._books[slot]}")

    @property
    def left(self) -> list[str]:
        """The tasks whose message is not settled."""
        return sorted({self.names[body] for body, progress in self.tasks.items() if not progress.settled})

    # -- runs ----------------------------------------------------------------------------------

    def begins(self, run: SimulatedRun) -> None:
        """A run begins, this instant."""
        progress = self.tasks[run.body]
        self.begun += 1
        progress.runs += 1
        what = str(run)
        if not (progress.gone_back or progress.forgotten):
            self._check_rerun(run, progress, what)
            self._check_order(run, progress)
        self._check_epoch(run)
        if self.ledger is not None:
            self.ledger.begins(run)
        for other in self._running[run.key]:
            self.check_overlap(other, run)
        self._running[run.key].append(run)

    def _check_rerun(self, run: SimulatedRun, progress: Progress, what: str) -> None:
        if progress.settled:
            raise Violation(Invariant.RUN_AFTER_SETTLED, what)
        before = progress.finished_by
        # Who finished it remembers that.
        cut_off = (progress.cut_off or progress.unsettled) and run.process is not before
        if before is not None and not (before.failed or before.courier.gave_up or cut_off):
            raise Violation(Invariant.RERUN_WITHOUT_FAULT, f"{what}, finished by {before.origin}")

    def ends(self, run: SimulatedRun, *, finished: bool) -> None:
        """A run is over."""
        self._running[run.key].remove(run)
        if finished:
            progress = self.tasks[run.body]
            progress.finished_by, progress.finished_at, progress.cut_off = run.process, run.process.world.now, False
            self._finished.add(run.body)

    def cuts_off(self, process: Process, slot: Slot, since: float) -> None:
        """A worker lost a slot while its connection to the broker was broken; nothing it said after `since` arrived."""
        for progress in self.tasks.values():
            if progress.finished_by is process and progress.slot == slot and progress.finished_at >= since:
                progress.cut_off = True

    def thaws(self, run: SimulatedRun) -> None:
        """A run goes on after it stood still."""
        for other in self._running[run.key]:
            if other is not run:
                self.check_overlap(run, other)

    def check_overlap(self, run: SimulatedRun, other: SimulatedRun) -> None:
        """Two runs of one key are under way; what stands still runs nothing."""
        if run.stands_still or other.stands_still:
            return
        raise Violation(_overlap(run, other), f"{run} beside {other}")

    def _check_order(self, run: SimulatedRun, progress: Progress) -> None:
        if not progress.place:
            return  # it waited for its time in flight, for the disposition that defers it was lost
        queue = (run.key, run.priority)
        place, later = self._highest.get(queue, (0, ""))
        if progress.place >= place:
            self._highest[queue] = (progress.place, str(run))
            return
        broken = Invariant.FIRST_RUN_ORDER if progress.runs == 1 else Invariant.RUN_AFTER_LATER
        raise Violation(broken, f"{run} after {later}")

    def _check_epoch(self, run: SimulatedRun) -> None:
        epoch, incarnation = self._started.get(run.fenced, (0, ""))
        if run.epoch < epoch:
            raise Violation(Invariant.STALE_START, f"{run}, epoch {epoch} was seen")
        if run.epoch == epoch and run.incarnation != incarnation:
            raise Violation(Invariant.EPOCH_SHARED, f"{run}, whose epoch was that of {incarnation}")
        self._started[run.fenced] = (run.epoch, run.incarnation)

    # -- members -------------------------------------------------------------------------------

    def owns(self, process: Process, processes: Collection[Process]) -> None:
        """A member has made a step; does anybody else hold what it holds?"""
        if not process.held or not process.trusts:
            return
        for other in processes:
            if other is not process and other.held and (both := process.held & other.held) and other.trusts:
                raise Violation(Invariant.TWO_OWNERS, f"slots {sorted(both)} of {process.origin} and {other.origin}")

    def adopts(self, process: Process, old: View | None, new: View | None) -> None:
        """A member has taken a view in the place of another."""
        if old is not None and new is not None and (new.generation, new.version) < (old.generation, old.version):
            raise Violation(Invariant.VERSION_GAP, f"{process.origin}: {new.version} after {old.version}")

    def swaps(self, old: View | None, new: View) -> None:
        """The store has replaced a view."""
        if old is not None and old.generation == new.generation:
            if new.version != old.version + 1:
                raise Violation(Invariant.VERSION_GAP, f"{new.version} after {old.version}")
            self._check_epochs(old, new)
        if any(new.target):
            self._check_balance(new)

    def _check_epochs(self, old: View, new: View) -> None:
        for slot in range(new.slots):
            if new.epoch[slot] < old.epoch[slot]:
                raise Violation(Invariant.EPOCH_BACK, f"slot {slot}: {new.epoch[slot]} after {old.epoch[slot]}")
            if new.epoch[slot] == old.epoch[slot] and _holder(new, slot) != _holder(old, slot):
                raise Violation(Invariant.EPOCH_SHARED, f"slot {slot} changed hands under epoch {new.epoch[slot]}")

    def _check_balance(self, view: View) -> None:
        weights = {m.name: m.weight for m in view.members.values() if m.state is MemberState.ACTIVE}
        total = sum(weights.values())
        held = dict.fromkeys(weights, 0)
        for name in view.target:
            if name not in held:
                raise Violation(Invariant.UNBALANCED_PLAN, f"version {view.version}: {name} is to have a slot")
            held[name] += 1
        if any(abs(held[name] - view.slots * weight / total) >= 1 for name, weight in weights.items()):
            raise Violation(Invariant.UNBALANCED_PLAN, f"version {view.version}: {held} by weights {weights}")


def _holder(view: View, slot: int) -> str | None:
    owner = view.owner[slot]
    return None if owner is None or owner not in view.members else view.members[owner].incarnation


def _overlap(run: SimulatedRun, other: SimulatedRun) -> Invariant:
    if run.process is other.process:
        return Invariant.OVERLAP_SAME_WORKER
    if not (run.process.alive and other.process.alive):
        return Invariant.OVERLAP_ORPHAN
    trusted = run.process.trusts and other.process.trusts
    return Invariant.OVERLAP_TRUSTED if trusted else Invariant.OVERLAP_ZOMBIE
