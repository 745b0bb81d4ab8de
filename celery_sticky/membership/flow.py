"""The flow of a member: the requests that it yields, and the parts of the worker that it tells what has happened.

`state` has the flow itself. Its runner carries out each request and sends back the answer, or throws the error in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from celery_sticky.errors import RefusedToStart
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.keys import SlotId
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Store
from celery_sticky.stores.flow import Aside, Pause, Watch

Answer = TypeVar("Answer")

# -- Requests ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Do what must happen in this worker before others can see its new incarnation."""

    incarnation: str


Request = Watch | Prepare | Pause | Aside | Callable[[Store], object]
"""A request; a callable is one of the store's verbs. Each may raise `StoreUnavailable`."""
Flow = Generator[Request, Any, Answer]


# -- Who is told -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A member's state at one instant; replaced as a whole."""

    phase: Phase = Phase.OUT
    incarnation: str = ""
    view: View | None = None
    trust_until: float = float("-inf")
    store_lost: bool = False

    def differs(self, before: Snapshot) -> bool:
        """Return whether phase, incarnation or view are not those of the snapshot before."""
        same = (self.phase, self.incarnation) == (before.phase, before.incarnation)
        return not same or self.view is not before.view


class Slots(Protocol):
    """The interface to the owner of the worker's slots. No method blocks; answers are posted as events."""

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a slot; reports `Opened` or `OpenRefused`."""

    def stop(self, slot: SlotId) -> None:
        """Start nothing more in a slot; reports `Drained` once nothing of it is left here."""

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already."""


class JobSlots(Protocol):
    """The interface to the jobs in the worker's slots. It does not block; answers are posted as events."""

    def stop_jobs(self, slot: SlotId) -> None:
        """Stop the jobs of a slot whose tasks have ended; reports `Drained` once none of them is left here."""


class LeaseWriter(Protocol):
    """The worker's lease, which only members write."""

    def grant(self, keyspace: str, until: float, membership: int) -> None:
        """Trust the membership with this number until then, and no earlier one."""

    def mark(self, keyspace: str, slot: int, *, open_here: bool) -> None:
        """Record whether a slot is open here."""


class Hooks(Protocol):
    """Callbacks from the member to the application.

    Called in the member's thread, except `gained` and `lost`: the handlers of an application may take long, so these
    are called in a thread of their own, one after the other, while the member waits and other members do not.
    """

    @property
    def heeded(self) -> bool:
        """Whether the application wants to hear of gained or lost slots."""

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


class Observer(Protocol):
    """What the placer of a placed keyspace hears from the member. Called in the member's thread."""

    def observe(self, snapshot: Snapshot) -> None:
        """Handle a new phase, incarnation or view."""

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """Handle a counted heartbeat."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a worker that the member of one keyspace deals with, beside the store."""

    keyspace: str
    slots: Slots
    lease: LeaseWriter
    hooks: Hooks
    clock: Callable[[], float]
    """Returns seconds, and counts suspend."""
    revoke_ttl: float
    """Seconds for which the store remembers a revoked task."""
    revoke_limit: int
    observer: Observer | None = None
    """The placer; None: the keyspace is not a placed one."""
    jobs: JobSlots | None = None
    """None: the keyspace has no jobs."""
    instruments: Instruments = field(default_factory=Instruments)
