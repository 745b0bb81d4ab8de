"""The inputs (events) and outputs (effects) of a member's machine: one frozen dataclass for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_sticky.ownership.view import View
from celery_sticky.slots import Slot

# -- Events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The answer to `Read`."""

    view: View | None
    heartbeats: dict[str, int]
    store_id: str
    clock: float


@dataclass(frozen=True, slots=True)
class BeatDone:
    """The answer to `SendBeat`."""

    sent: float
    alive: bool
    version: int
    generation: int
    store_id: str
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """The counters of all members, if the heartbeat was not announced."""
    counter: int = 0
    """The member's own counter, including this heartbeat."""


@dataclass(frozen=True, slots=True)
class SwapDone:
    """The answer to `Swap`: whether the view was replaced."""

    sent: float
    new: View
    done: bool


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A store effect got no answer: the store may have applied it or not."""

    sent: float


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """Signal: the view has reached this version."""

    version: int


@dataclass(frozen=True, slots=True)
class HeartbeatHeard:
    """Signal: a member's counter has reached this value."""

    incarnation: str
    counter: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The courier has opened the slot under this epoch."""

    slot: Slot
    epoch: int


@dataclass(frozen=True, slots=True)
class OpenRefused:
    """The broker refused to open the slot: another tenure holds the fence, at this epoch."""

    slot: Slot
    fence: int


@dataclass(frozen=True, slots=True)
class TasksDrained:
    """No task of a stopped slot is left here, and every disposition is confirmed. Its jobs run on."""

    slot: int


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing of a stopped slot runs here any more, and every disposition is confirmed."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class WorkerQueueClosed:
    """This member is leaving, and nothing of its worker queue is left here."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """The courier has lost the broker."""


@dataclass(frozen=True, slots=True)
class BrokerUp:
    """The courier has reconnected to the broker."""


@dataclass(frozen=True, slots=True)
class HostDown:
    """No job host is ready to run the keyspace's jobs."""


@dataclass(frozen=True, slots=True)
class HostUp:
    """The job host has loaded the app."""


@dataclass(frozen=True, slots=True)
class LoopSilent:
    """The loop that runs tasks has been silent for too long, or reports that it cannot run any."""

    stall: str
    """Since when (seconds since the epoch) and why: the value of the member's attribute `STALLED`."""


@dataclass(frozen=True, slots=True)
class LoopAnswers:
    """The loop that runs tasks answers again."""


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Somebody wants this member to give everything away and to take nothing; or, with `undo`, to join again."""

    undo: bool = False


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The worker is shutting down: give all slots away."""


Event = (
    Tick | ReadDone | BeatDone | SwapDone | StoreFailed | ViewChanged | HeartbeatHeard | Opened | OpenRefused
    | TasksDrained | Drained | WorkerQueueClosed | BrokerDown | BrokerUp | HostDown | HostUp | LoopSilent | LoopAnswers
    | DrainAsked | LeaveAsked
)  # fmt: skip


# -- Effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Read view and counters from the store."""


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Count a heartbeat at the store, and either announce it to the other members or read their counters."""

    incarnation: str
    announce: bool


@dataclass(frozen=True, slots=True)
class Swap:
    """Ask the store to replace the view."""

    old: View | None
    new: View
    guard: dict[str, int]
    until: float | None = None
    """Not later than this, by the store's clock."""


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """Open the slot queue and fetch from it."""

    slot: int
    epoch: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class StopSlot:
    """Stop fetching, forget unstarted messages, and report `Drained` once nothing of the slot is left.

    Where a slot may have jobs, report `TasksDrained` instead.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class StopJobs:
    """Stop the jobs of a slot that has no tasks left, and report `Drained` once none of them is left."""

    slot: int


@dataclass(frozen=True, slots=True)
class CloseSlot:
    """Forget a slot that another worker owns already."""

    slot: int


@dataclass(frozen=True, slots=True)
class LoseSlots:
    """Tell the application first: the next effect gives these slots away."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Evicted:
    """This member has evicted another one."""

    name: str
    silence: float
    """Seconds since its last heartbeat."""
    slots: int
    """How many slots it owned."""


@dataclass(frozen=True, slots=True)
class WasEvicted:
    """The other members have evicted this one."""

    incarnation: str
    silence: float
    """Seconds since its last counted heartbeat was sent."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop this worker: it may not join."""

    reason: str
    name_taken: bool


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    text: str


StoreEffect = Read | SendBeat | Swap
Effect = StoreEffect | OpenSlot | StopSlot | StopJobs | CloseSlot | LoseSlots | Evicted | WasEvicted | Refuse | Say
