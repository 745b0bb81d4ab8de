"""The member of one keyspace: a thread runs the flow of `state` against a store, beside those of other keyspaces.

The thread is one of the operating system, so that no task and no greenlet delays heartbeats. It alone writes the lease.
Everything else talks to the member through `post`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.membership.clerk import Clerk
from celery_sticky.membership.flow import Hooks, JobSlots, Observer, Slots, Snapshot, Surroundings
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.membership.state import MembershipState
from celery_sticky.ownership.events import DrainAsked, Event, LeaveAsked
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import Machine, MemberConfig, Phase
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.seat import Seat
from celery_sticky.stores.base import Store


class Member:
    """One worker's membership in one keyspace. Any thread may call its public methods."""

    def __init__(
        self,
        keyspace: str,
        config: Callable[[str], MemberConfig],
        thread: FlowThread[Store],
        slots: Slots,
        lease: Lease,
        name_lock: NameLock,
        hooks: Hooks,
        *,
        revoke_ttl: float,
        revoke_limit: int,
        placer: Observer | None = None,
        jobs: JobSlots | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        """`config` gets the incarnation of our name whose process is known to be dead, or an empty string."""
        self.keyspace = keyspace
        self._config, self._lease, self._name_lock = config, lease, name_lock
        self._here = Surroundings(
            keyspace,
            slots,
            lease,
            hooks,
            boottime,
            revoke_ttl,
            revoke_limit,
            observer=placer,
            jobs=jobs,
            instruments=instruments or Instruments(),
        )
        self._thread = thread
        self._inbox: deque[Event] = deque()
        self._state: MembershipState | None = None
        self._seat: Seat[Store] | None = None

    def start(self) -> None:
        """Take the name lock and start to join.

        Raises:
            NameTaken: a living process on this machine has the name.
        """
        config = self._config(self._name_lock.acquire())
        self._state = state = MembershipState(self._here, Machine(config, boottime()), self._inbox)
        self._seat = self._thread.seat(Clerk(self._here, state, self._inbox, self._name_lock, config.name))
        self._thread.add(self._seat)

    @property
    def snapshot(self) -> Snapshot:
        """The member's state now."""
        return self._state.snapshot if self._state is not None else Snapshot()

    def post(self, event: Event) -> None:
        """Send an event to the member."""
        self._inbox.append(event)
        if self._seat is not None:
            self._seat.wake()

    def slots(self) -> tuple[int, int]:
        """Return how many slots are open here, and how many are opening or closing."""
        if self._state is None:
            return 0, 0
        states = list(self._state.machine.slots.values())  # one step, so the dict cannot change during the copy
        open_here = states.count(SlotState.OPEN)
        return open_here, len(states) - open_here

    def drain(self, *, undo: bool) -> None:
        """Give everything away and take nothing until this is undone; see `drained`."""
        self.post(DrainAsked(undo))

    @property
    def draining(self) -> bool:
        """Whether it was told to give everything away."""
        return self._state is not None and self._state.machine.draining

    @property
    def drained(self) -> bool:
        """Whether it has given everything away since, and takes nothing."""
        return self._state is not None and self._state.machine.drained

    def leave(self) -> None:
        """Start to give all slots away."""
        self.post(LeaveAsked())

    def finish(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until everything is given away, then end; False if something was left.

        Return True if the member was never started.
        """
        if self._seat is None:
            return True
        self.post(LeaveAsked())
        deadline = time.monotonic() + timeout
        while self.snapshot.phase not in (Phase.LEFT, Phase.REFUSED) and time.monotonic() < deadline:
            time.sleep(0.01)  # until the member has given everything away
        self._seat.stop()
        while not self._seat.ended and time.monotonic() < deadline + 1:
            time.sleep(0.005)  # until its last turn has ended
        if self.snapshot.phase is Phase.LEFT:
            self._name_lock.release()
        return self.snapshot.phase is Phase.LEFT
