"""The courier of a worker: its one access to the broker, for the member, the placers and the Celery side.

It holds the delivery state (`state`) and the lock that guards it. Its loop (`flow`) says what to do at the broker; its
line (`line`) does it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from celery_sticky.delivery.flow import CourierConfig, CourierFlow
from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.intake import TaskSink
from celery_sticky.delivery.limited import Bucket
from celery_sticky.delivery.line import Line
from celery_sticky.delivery.state import DeliveryState, End, abandonment
from celery_sticky.keys import SlotId
from celery_sticky.ownership.events import Event
from celery_sticky.platform.native import Section

Answer = TypeVar("Answer")


class Courier:
    """The worker's access to its slot queues. Any thread may call the public methods.

    `trusted` returns whether the lease of a keyspace is trusted now. `clock` returns seconds since the epoch.
    """

    def __init__(
        self,
        line: Line,
        config: CourierConfig,
        report: Callable[[str, Event], None],
        trusted: Callable[[str], bool],
        unclaimed: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line, self._trusted, self._clock, self._monotonic = line, trusted, clock, monotonic
        self._lock = Section()
        self._state = DeliveryState(
            report,
            worker=config.worker,
            concurrency=lambda: self._sink.concurrency(),
            max_waiting=config.max_waiting,
            max_waiting_bytes=config.max_waiting_bytes,
            max_attempts=config.max_attempts,
            claim_ahead=config.claim_ahead,
            guarantees=config.guarantees,
        )
        self._flow = CourierFlow(config, self._state, self._lock, report, unclaimed, clock, monotonic)
        self._started = False

    def start(self, sink: TaskSink) -> None:
        """Start to work for this task sink."""
        self._sink, self._started = sink, True
        self._line.start(self._flow.run(sink))

    def flush(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until the broker has confirmed every disposition."""
        deadline = self._monotonic() + timeout
        while len(self._state.outbox) and self.down_since is None and self._monotonic() < deadline:
            self._wake()
            time.sleep(0.005)

    def shutdown(self, timeout: float) -> None:
        """Settle what is left within `timeout` seconds and end the loop; do nothing if it was never started."""
        if not self._started:
            return
        deadline = self._monotonic() + timeout
        self.flush(timeout)
        self._flow.running = False
        self._line.wake()
        self._line.join(max(0.1, deadline - self._monotonic()))

    @property
    def down_since(self) -> float | None:
        """When the broker was lost, on the monotonic clock; None: it is there."""
        return self._flow.down_since

    def _wake(self) -> None:
        # Only out of `idle`, and once: in any other state the flow checks everything before it idles.
        if self._flow.idling:
            self._flow.idling = False
            self._line.wake()

    # -- for the member ------------------------------------------------------------------------

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a slot; reports `Opened` or `OpenRefused`."""
        with self._lock:
            self._state.slots.open(slot, epoch, incarnation)
        self._wake()

    def stop(self, slot: SlotId) -> None:
        """Start nothing more in a slot; reports `Drained` once nothing of it runs here and everything is settled."""
        with self._lock:
            self._state.stop(slot, self._clock())
        self._wake()

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already; a task of it that runs here keeps its key locked."""
        with self._lock:
            self._state.slots.close(slot)
        self._wake()

    def is_open(self, slot: SlotId) -> bool:
        """Return whether messages of the slot may start here."""
        with self._lock:
            return self._state.gate.is_open(slot)

    # -- for the placers -----------------------------------------------------------------------

    def trusts(self, keyspace: str) -> bool:
        """Return whether the lease in this keyspace is trusted now."""
        return self._trusted(keyspace)

    def consult(self, ask: Callable[[DeliveryState], Answer]) -> Answer:
        """Return what `ask` reads from the delivery state. `ask` must not block."""
        with self._lock:
            return ask(self._state)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """Let `tell` apply decisions about keys to the delivery state at the current time. `tell` must not block."""
        with self._lock:
            tell(self._state, self._clock())
            self._flow.decided = True
        self._wake()

    def limit(self, buckets: Mapping[str, Bucket]) -> None:
        """Limit the rate of these kinds of tasks from now on, and of no others. Buckets are used under the lock."""
        with self._lock:
            self._state.gate.limit(buckets)
        self._wake()

    # -- for the Celery side -------------------------------------------------------------------

    def take(self, most: int, at_once: int = sys.maxsize) -> list[Entry]:
        """Hand out at most `at_once` entries now, so that the pool has at most `most`."""
        with self._lock:
            return self._state.take(most, lambda slot: self._trusted(slot[0]), at_once)

    def start_entry(self, entry: Entry, turn: int) -> bool:
        """Reserve the start of an entry; False: it must not start, the caller forgets it."""
        trusted = self._trusted(entry.slot[0])
        with self._lock:
            if self._state.gate.start(entry, turn, trusted=trusted):
                return True
            self._state.gate.put_back(entry, turn)
            return False

    def began(self) -> None:
        """Note that the run of a claimed entry has begun: another may be claimed ahead now."""
        if self._state.gate.run_claims:
            self._wake()

    def put_back_all(self) -> None:
        """Make all entries ready again that were handed out: their holder has dropped them."""
        with self._lock:
            self._state.gate.put_back_all()

    def again(self, entry: Entry, *, counted: bool, cause: str = "") -> None:
        """Give a started task that did not finish another turn in its place, if the slot is still ours.

        If `counted`, the broker counts the next start first, and the message is buried at the limit. `cause` says why
        the task did not finish, unless a process died.
        """
        if self._lock.later(lambda: self.again(entry, counted=counted, cause=cause)):
            return
        with self._lock:
            self._state.again(entry, self._clock(), counted=counted, cause=cause)
        self._wake()

    def rest(self, entry: Entry, turn: int, *, after_run: bool, cause: str) -> None:
        """Retry an entry later, in its place: it could not start, or (`after_run`) its task gave the message back."""
        if self._lock.later(lambda: self.rest(entry, turn, after_run=after_run, cause=cause)):
            return
        with self._lock:
            self._state.rest(entry, turn, self._clock(), after_run=after_run, cause=cause)
        self._wake()

    def end(self, entry: Entry, end: End) -> None:
        """Settle the message of a task that has released its key, then free the key. Only the first call counts."""
        if self._lock.later(lambda: self.end(entry, end)):
            return
        with self._lock:
            hurry = self._state.end(entry, end, self._clock())
        if hurry:
            self._wake()

    def abandon(self, entry: Entry, cause: str) -> None:
        """Bury the message of a run that was claimed and did not finish: it may have run, and is not run again."""
        self.end(entry, abandonment(cause))

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, runnable, waiting, rate-limited and unconfirmed entries, and of their keys."""
        with self._lock:
            gate = self._state.gate
            running = sum(gate.slots_running().values())
            return {
                "running": running,
                "runnable": gate.runnable,
                "waiting": gate.waiting,
                "limited": len(gate.limited),
                "unconfirmed": len(self._state.outbox),
                "keys": gate.keys,
                "discarded": self._state.discarded,
                "abandoned": self._state.abandoned,
            }

    def running_by_slot(self) -> dict[SlotId, int]:
        """Return how many tasks of each slot run here or await confirmation."""
        with self._lock:
            return self._state.gate.slots_running()
