"""What a member is told (events) and what it asks for (effects): one frozen dataclass for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_sticky.ownership.view import View

Slot = int | str
"""The number of a slot, or `@<worker>`: see `celery_sticky.keys`, which the rules do without."""

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
    """Everybody's counters, after a beat that was not announced."""
    counter: int = 0
    """The member's own, with this beat."""


@dataclass(frozen=True, slots=True)
class SwapDone:
    """The answer to `Swap`: whether it took place."""

    sent: float
    new: View
    done: bool


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A store effect brought no answer: it may or may not have taken place."""

    sent: float


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """Signal: there is a view of this version."""

    version: int


@dataclass(frozen=True, slots=True)
class HeartbeatHeard:
    """Signal: a member's counter had this value."""

    incarnation: str
    counter: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The courier has opened the slot under this epoch."""

    slot: Slot
    epoch: int


@dataclass(frozen=True, slots=True)
class OpenRefused:
    """The slot's fence was found at this epoch, held by another tenure."""

    slot: Slot
    fence: int


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing of a stopped slot runs here any more, and every verdict is confirmed."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class DirectClosed:
    """This member leaves, and nothing of its worker queue is left here."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """The courier has lost the broker."""


@dataclass(frozen=True, slots=True)
class BrokerUp:
    """The courier has the broker again."""


@dataclass(frozen=True, slots=True)
class HostDown:
    """There is no job host in which the keyspace's jobs could run, or not yet."""


@dataclass(frozen=True, slots=True)
class HostUp:
    """The job host has loaded the app."""


@dataclass(frozen=True, slots=True)
class LoopSilent:
    """The side that runs tasks has not answered for too long, or answers that it cannot run any."""

    stall: str
    """Since when (seconds since the epoch) and why: what the member's attribute `STALLED` says."""


@dataclass(frozen=True, slots=True)
class LoopAnswers:
    """The side that runs tasks answers again."""


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The worker shuts down: give everything away."""


Event = (
    Tick | ReadDone | BeatDone | SwapDone | StoreFailed | ViewChanged | HeartbeatHeard | Opened | OpenRefused | Drained
    | DirectClosed | BrokerDown | BrokerUp | HostDown | HostUp | LoopSilent | LoopAnswers | LeaveAsked
)  # fmt: skip


# -- Effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """Ask the store for view and counters."""


@dataclass(frozen=True, slots=True)
class SendBeat:
    """Count a heartbeat at the store; announce it to the others, or else ask for theirs."""

    incarnation: str
    announce: bool


@dataclass(frozen=True, slots=True)
class Swap:
    """Ask the store to replace the view."""

    old: View | None
    new: View
    guard: dict[str, int]


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """Open the slot queue and fetch from it."""

    slot: int
    epoch: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class StopSlot:
    """Fetch no more, forget what has not started, say when it is drained."""

    slot: int


@dataclass(frozen=True, slots=True)
class CloseSlot:
    """The slot is somebody else's already: forget it."""

    slot: int


@dataclass(frozen=True, slots=True)
class LoseSlots:
    """These slots are given away with the next effect: tell the application first."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Refuse:
    """This worker may not take part: stop it."""

    reason: str
    name_taken: bool


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    text: str


Effect = Read | SendBeat | Swap | OpenSlot | StopSlot | CloseSlot | LoseSlots | Refuse | Say
