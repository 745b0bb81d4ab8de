"""The contract of a broker driver for slot queues: fence them, move messages atomically, settle under the fence.

One thread (the courier) uses a driver object; any thread may call `wake`. A message is either in its queue, in flight
(fetched, not settled), deferred (waiting for its time), dead (buried with a reason) or gone (acked). If a method raises
`BrokerUnavailable`, the broker may or may not have acted: open the slots again with the next count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from celery_sticky.envelope import Envelope, parse
from celery_sticky.errors import Fenced, SlotBroken, SlotHeld
from celery_sticky.keys import SlotId
from celery_sticky.queues.guarantees import Guarantees
from celery_sticky.queues.inspection import Dead, Depth
from celery_sticky.slots import Slot


class Tenure(Struct, frozen=True):
    """A member's hold on a slot; the fence of a slot queue is set to exactly one tenure."""

    keyspace: str
    slot: Slot
    epoch: int
    incarnation: str
    open_count: int

    def trip(self, number: int) -> str:
        """Return a name for one request under this tenure, which is unique even if the broker loses data.

        `number` counts the requests of one reader. A request that fetches from many slots has a name for each: numbers
        of deliveries are counted by slot, and a delivery that holds a run is known in the whole keyspace.
        """
        return f"{self.incarnation}.{self.open_count}.{number}.{self.slot}"


class Tag(Struct, frozen=True, order=True):
    """The permanent name of one delivery in its keyspace.

    A broker that returns with an older copy of its data counts from a lower number again, perhaps under the same
    opening. A number alone would then name two messages, and the acknowledgement of one would delete the other.
    """

    number: int
    """Grows with every delivery of the slot, so tags are ordered by fetch."""
    trip: str
    """The name of the request that fetched it (`Tenure.trip`)."""


class Opening(Struct, frozen=True):
    """A request to open one slot."""

    tenure: Tenure
    keep: tuple[Tag, ...] = ()
    """The deliveries that stay in flight: they run here, or their disposition is not confirmed."""


OpenAnswer = Collection[Tag] | Fenced | SlotHeld | SlotBroken
"""The answer to an `Opening`: which tags of `keep` are in flight, or why the slot is not open."""


class RunClaim(Struct, frozen=True):
    """A run, as the ledger of its keyspace names it.

    The ledger is the durable record of runs that were claimed and finished. It outlives every tenure: a worker that
    gets another copy of the message finds the record of its run.
    """

    run: str
    """The task's id and the number of its retries: a retry keeps the id."""
    once: bool
    """At most once: the run is claimed before it starts. Otherwise only that it has finished is recorded."""
    earlier: tuple[Tag, ...] = ()
    """UNCLAIM, MOVE: deliveries of the same message to the same worker before; a claim that they hold is deleted too.

    A worker whose connection broke gets a message that it has claimed again, as another delivery.
    """


class Outcome(StrEnum):
    """The kind of a disposition.

    Some settle nothing: `COUNT_START` counts a coming start and `UNCOUNT_START` takes it back; `CLAIM` claims a coming
    run in the ledger and `UNCLAIM` gives it back.
    """

    ACK = "ack"
    DEFER = "defer"
    BURY = "bury"
    COUNT_START = "mark"
    UNCOUNT_START = "unmark"
    CLAIM = "claim"
    """Claim the run of `Disposition.claim`, or ask whether it has finished. `Fetched.claims` has the answer."""
    UNCLAIM = "unclaim"
    """Delete the claim of a run that has not started, if this delivery or an earlier one of its message holds it."""
    MOVE = "move"
    """Settle here and add to the back of another queue of the keyspace: one step, if the driver's `moves` is true."""


class Disposition(Struct, frozen=True):
    """The disposition of one delivery."""

    outcome: Outcome
    tenure: Tenure
    tag: Tag
    due: float = 0.0
    """DEFER: when the message goes to the back of its queue, in seconds since the epoch; that time sets its place."""
    body: bytes | None = None
    """DEFER, MOVE: the envelope that replaces the old one (a retry with new arguments); None keeps the old one."""
    info: str = ""
    """BURY: a JSON object, kept with the message, with at least `reason`, `task`, `id`, `key`, `at` (seconds)."""
    to: Slot = 0
    """MOVE: the queue that the message goes to; it keeps its priority."""
    starts: int = 0
    """COUNT_START, UNCOUNT_START: the number of the counted start, from 1. A repeated request counts once."""
    claim: RunClaim | None = None
    """CLAIM, UNCLAIM: the run. ACK, DEFER, BURY: the run that has finished; this is recorded in the same step.

    MOVE: the run that has not started; a claim that this delivery holds is deleted in the same step.
    """


class Delivery(Struct, frozen=True):
    """One message as it was fetched.

    The methods read the JSON that Kombu's virtual transports write. Where a broker carries messages in another form,
    the driver returns a subclass whose methods read that.
    """

    tenure: Tenure
    tag: Tag
    priority: int
    """The priority list the message came from (0, 3, 6 or 9)."""
    body: bytes
    """The message exactly as the publisher wrote it."""
    attempts: int | None
    """Starts counted so far; None if no change of owner ever found the message in flight: it needs no counting."""

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, about."""
        return len(self.body)

    @property
    def identity(self) -> bytes:
        """A digest of what was published (id, retries, stamp, arguments): the same in every delivery of the message.

        It is computed only for messages that may come again after they ended here, or after their starts were counted.
        """
        return blake2b(self.body, digest_size=16).digest()

    def envelope(self) -> Envelope:
        """Parse the message.

        Raises:
            DamagedMessage: it is not what Kombu writes.
        """
        return parse(self.body)

    def raw(self) -> bytes:
        """Return the message as the JSON that Kombu's virtual transports write: what `Disposition.body` replaces."""
        return self.body


class Want(Struct, frozen=True):
    """Fetch at most `limit` messages under this tenure."""

    tenure: Tenure
    limit: int


@dataclass(slots=True)
class Fetched:
    """The answer to one round trip. A disposition may be answered by a later one: see `SlotQueues.fetch`."""

    deliveries: list[Delivery] = field(default_factory=list)
    """In order within each slot."""
    confirmed: list[Disposition] = field(default_factory=list)
    """Dispositions that were applied."""
    refused: list[Disposition] = field(default_factory=list)
    """Dispositions of a former tenure, or of a tag no longer in flight: nothing happened."""
    counted_starts: dict[tuple[str, Slot, Tag], int] = field(default_factory=dict)
    """(keyspace, slot, tag) -> starts counted so far, including this one, for each confirmed COUNT_START."""
    claims: dict[tuple[str, Slot, Tag], Tag | None] = field(default_factory=dict)
    """(keyspace, slot, tag) -> the delivery that holds the claim, for each confirmed CLAIM; None: the run has finished.

    A delivery that is not `once` holds nothing: it is answered with its own tag if its run has not finished.
    """
    drained: set[tuple[str, Slot]] = field(default_factory=set)
    """Wanted slots (keyspace, slot) whose queue is empty now; `idle` returns those of them that get a message."""
    lost: set[tuple[str, Slot]] = field(default_factory=set)
    """Wanted slots whose fence belongs to another tenure now."""
    broken: dict[tuple[str, Slot], str] = field(default_factory=dict)
    """Slots (keyspace, slot) with an unusable record -> which and why; the other slots are served."""
    failed: list[tuple[Disposition, str]] = field(default_factory=list)
    """Dispositions that could not be applied, and why (an unusable record, no memory): send them again later."""
    due: dict[tuple[str, Slot], float] = field(default_factory=dict)
    """Wanted slots with deferred messages -> when the next is due, in seconds since the epoch."""

    def add(self, other: Fetched) -> None:
        """Add the answer to a later part of the same request."""
        for name in ("deliveries", "confirmed", "refused", "failed"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("counted_starts", "claims", "drained", "lost", "broken", "due"):
            getattr(self, name).update(getattr(other, name))


class SlotQueues(Protocol):
    """The slot queues of every keyspace at one broker."""

    guarantees: Guarantees
    """Those of its `Driver`, but for what the options of the connection change (`priorities`)."""

    def open(self, openings: Sequence[Opening]) -> Sequence[OpenAnswer]:
        """Open different slots in one round trip, each in one step of its own; return an answer for each, in order.

        An opening sets the slot's fence to its tenure and puts the queue in order. Its answer is one of these:

        - The tags of `keep` that are in flight: the slot is open.
        - `Fenced`: the fence has a higher epoch, or this epoch and another incarnation, or this epoch and incarnation
          and at least this open count. Nothing changed.
        - `SlotHeld`: another connection still holds the slot. Nothing changed; open again later, with the next count.
        - `SlotBroken`: a record of the slot is unusable; open again later, with the next count.

        Deliveries in flight go back to the front of the queue (of the priority list they came from) in their original
        order. Those whose tag is in `keep` stay in flight and can be settled under the new tenure. A tag that is not
        returned is settled already, or the broker has lost its record of that delivery: the message may be delivered
        again.

        Messages that go back from another incarnation are suspects: they may have been started. Each later delivery of
        a suspect carries its counted starts (`Delivery.attempts`), until it is acked, buried or deferred: a deferred
        message did not kill its worker.

        Raises:
            BrokerUnavailable: any of the slots may be open; open them again with the next counts.
        """

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Apply `dispositions`, then fetch for `wants`: one round trip, each message moved atomically.

        Within a slot messages come in priority order (0 first), then in the order in which the broker received them.
        Deferred messages that are due at `now` (seconds since the epoch) first go to the back of their queue.

        One round trip is bounded in bytes and time. If messages are big, or many are due at once, it may bring fewer
        than wanted, but brings something while there is anything; such a slot is not `drained`. The order holds: a
        message that came due before another was published or came due is brought first.

        `now` is also the time at which runs finished, as the ledger has it.

        Each disposition has one answer: it is `confirmed`, `refused` or `failed`. A broker that confirms later answers
        with a later fetch; one with no wants and no dispositions only collects such answers.

        Raises:
            BrokerUnavailable: any part of it may have happened; open the slots again.
        """

    def idle(self, timeout: float) -> set[tuple[str, Slot]]:
        """Wait until a drained slot may have a message, a disposition was answered, `wake` is called, or time is up.

        Return the drained slots (keyspace, slot) that may have received a message since. A slot is returned once, then
        not again until a `fetch` finds it drained again. With a timeout of 0 it only checks. Deferred messages do not
        end the wait: wait no longer than until the next `Fetched.due`.

        Raises:
            BrokerUnavailable: the connection broke; open the slots again.
        """

    def wake(self) -> None:
        """Make the current `idle`, or the next one, return at once. Any thread may call this."""

    def release(self, tenures: Sequence[Tenure]) -> None:
        """Give slots back, in one round trip, and stop waiting for them in `idle`; ignore those under other tenures.

        If the connection holds a slot, its deliveries go back to the queue, and another connection may open it; the
        end of a connection does the same for all of its slots. A driver that fences by epoch sends nothing, and need
        not be asked: deliveries stay in flight until the next `open`.

        Raises:
            BrokerUnavailable: the connection broke, and so holds nothing.
        """

    def depths(self, slots: Collection[SlotId]) -> Mapping[SlotId, Depth]:
        """Return the number of messages in these slots, of any keyspace and owner; possibly big bodies are not read.

        A driver that can asks for many slots in one round trip.
        """

    def dead(self, keyspace: str, *, after: str = "", limit: int | None = None) -> Sequence[Dead]:
        """List buried messages of a keyspace without their bodies, oldest first.

        Return at most `limit` (None: all) of those buried after the one with the id `after` ("": from the first).
        This and the other methods for one keyspace's buried messages raise `SlotBroken` if one of their records is
        unusable.
        """

    def dead_message(self, keyspace: str, dead_id: str) -> Dead | None:
        """Return a buried message with its body, or None if this id does not exist."""

    def dead_counts(self, keyspaces: Collection[str]) -> Mapping[str, int | SlotBroken]:
        """Return how many messages of each keyspace are buried; a `SlotBroken` is the answer for its keyspace."""

    def trim_dead(self, keyspace: str, *, limit: int, before: float) -> int:
        """Drop the oldest buried messages: those beyond `limit` (0: no limit), and those buried before a time.

        Drop one bounded batch and return its size; there may be more to drop unless it is 0. `before` is in seconds
        since the epoch and is compared with `at` of the message's info.
        """

    def trim_ledger(self, keyspace: str, *, before: float) -> int:
        """Forget the runs that finished before a time, in seconds since the epoch; claims without an end stay.

        Forget one bounded batch and return its size; there may be more to forget unless it is 0.
        """

    def forget_run(self, keyspace: str, run: str) -> None:
        """Forget a run that was claimed or has finished, so that it can be claimed again.

        This and `trim_ledger` raise `SlotBroken` if a record of the ledger is unusable.
        """

    def requeue(self, keyspace: str, dead_id: str) -> bool:
        """Requeue a buried message at the back of its slot queue without counted starts; False if the id is unknown.

        The ledger forgets the run in the same step, if `run` of the message's info names one.
        """

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """Delete a buried message for good; False if this id does not exist."""

    def close(self) -> None:
        """Close every connection. May be called twice."""
