"""What a broker driver must do for slot queues: fence them, move messages atomically, settle them under the fence.

A driver object is used by one thread (the courier), except `wake`, which any thread may call. A message is either in
its queue, in flight (fetched, not settled), deferred (waits for its time), dead (buried with a reason) or gone (acked).
`BrokerUnavailable` from a verb means: it may or may not have happened; open the slots again with the next count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from celery_sticky.keys import WORKER_QUEUE, Slot

_SENT_AT = re.compile(rb'"sticky": ?\{[^{}]*"at": ?([0-9]+(?:\.[0-9]+)?)')


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What this driver can promise, as data: printed by `celery sticky doctor` and in the docs table."""

    fenced: bool
    """Nothing a former owner fetches or settles counts."""
    ordered: bool
    """Unsettled messages go back to the front of their queue in their original order."""
    atomic: bool
    """A message is never outside queue and in-flight record at once, however its reader dies."""
    deferred: bool
    """A message waits for its time in the broker."""
    moves: bool = False
    """A message goes from one queue of a keyspace to another in one step (`Act.MOVE`)."""


class Tenure(Struct, frozen=True):
    """A member's hold on a slot; the fence of a slot queue is set to exactly one tenure."""

    keyspace: str
    slot: Slot
    epoch: int
    incarnation: str
    open_count: int

    def trip(self, number: int) -> str:
        """Return the name of one request under this tenure: no other request has it, whatever the broker forgets.

        `number` counts the requests of one reader.
        """
        return f"{self.incarnation}.{self.open_count}.{number}"


class Tag(Struct, frozen=True, order=True):
    """Names one delivery for good.

    A broker that comes back with an older copy of its data counts from a lower number again, perhaps under the same
    opening. A number alone would then name two messages, and the acknowledgement of one would delete the other.
    """

    number: int
    """Grows with every delivery of the slot: its order is the order of fetching."""
    trip: str
    """Names the request that fetched it (`Tenure.trip`)."""


class Outcome(StrEnum):
    """How a delivery is settled. `MARK` (it is about to start) and `UNMARK` (it did not) do not settle it."""

    ACK = "ack"
    DEFER = "defer"
    BURY = "bury"
    COUNT_START = "mark"
    UNCOUNT_START = "unmark"
    MOVE = "move"
    """Settled here, and at the back of another queue of the keyspace: one step, where the driver moves."""


class Disposition(Struct, frozen=True):
    """What is to become of one delivery."""

    outcome: Outcome
    tenure: Tenure
    tag: Tag
    due: float = 0.0
    """DEFER: seconds since the epoch when the message goes to the back of its queue; its place is where it came due."""
    body: bytes | None = None
    """DEFER, MOVE: the envelope that takes its place (a retry with new arguments); None keeps the old one."""
    info: str = ""
    """BURY: a JSON object, kept with the message, with at least `reason`, `task`, `id`, `key`, `at` (seconds)."""
    to: Slot = 0
    """MOVE: where the message goes, in the priority list it came from."""
    starts: int = 0
    """MARK, UNMARK: which counted start it is about, from 1. Said twice it counts once."""


class Delivery(Struct, frozen=True):
    """One message as fetched."""

    tenure: Tenure
    tag: Tag
    priority: int
    """The priority list the message came from (0, 3, 6 or 9)."""
    body: bytes
    """The envelope as the publisher wrote it, untouched."""
    attempts: int | None
    """Starts marked so far, or None for a message never found in flight at a change of owner: it needs no mark."""


class Want(Struct, frozen=True):
    """Fetch at most `limit` messages under this tenure."""

    tenure: Tenure
    limit: int


@dataclass(slots=True)
class Fetched:
    """The answer to one round trip."""

    deliveries: list[Delivery] = field(default_factory=list)
    """In order within each slot."""
    confirmed: list[Disposition] = field(default_factory=list)
    """Verdicts that took place."""
    refused: list[Disposition] = field(default_factory=list)
    """Verdicts of a former tenure, or of a tag no longer in flight: nothing happened."""
    counted_starts: dict[tuple[str, Slot, Tag], int] = field(default_factory=dict)
    """(keyspace, slot, tag) -> starts marked, this one included, for each confirmed MARK."""
    drained: set[tuple[str, Slot]] = field(default_factory=set)
    """Wanted slots (keyspace, slot) whose queue is empty now; `idle` names those of them that get a message."""
    lost: set[tuple[str, Slot]] = field(default_factory=set)
    """Wanted slots whose fence is not this tenure any more."""
    broken: dict[tuple[str, Slot], str] = field(default_factory=dict)
    """Slots (keyspace, slot) of which a record cannot be used -> which and why; the others are not held up."""
    failed: list[tuple[Disposition, str]] = field(default_factory=list)
    """Verdicts that could not be carried out, and why (a broken record, no memory): send them again later."""
    due: dict[tuple[str, Slot], float] = field(default_factory=dict)
    """Wanted slots with deferred messages -> when the next comes due, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How much stands in a slot queue."""

    waiting: int
    deferred: int
    in_flight: int
    oldest: float | None
    """When the message that is next was sent, by its stamp (seconds since the epoch).

    None: there is no such message, it has no stamp, or the messages of this queue are too big to be read for it.
    """
    broken: str = ""
    """Which record of the slot cannot be used, and why; the counts are 0 then."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A buried message."""

    id: str
    """`<slot>-<tag>`, unique in its keyspace."""
    info: str
    """The JSON object given when it was buried."""
    body: bytes | None = None
    """The envelope; None in a list."""


class SlotQueues(Protocol):
    """The slot queues of every keyspace at one broker."""

    guarantees: Guarantees

    def open(self, tenure: Tenure, keep: Collection[Tag]) -> Collection[Tag]:
        """Set the slot's fence to `tenure`, bring its queue in order, and return which of `keep` are in flight.

        Deliveries in flight go back to the front of the queue (of the priority list they came from) in their original
        order, except those whose tag is in `keep`, which stay in flight and can be settled under the new tenure. A tag
        that is not returned is settled already, or the broker has lost what it knew of that delivery: the message may
        be delivered again.

        Those that go back from another incarnation are suspects: they may have been started. Each later delivery of a
        suspect says how often it was marked (`Delivery.attempts`), until it is acked, buried or deferred: a deferred
        message did not kill its worker.

        Raises:
            Fenced: the fence has a higher epoch, or this epoch and another incarnation, or this epoch and incarnation
                and at least this open count. Nothing changed.
            SlotBroken: a record of the slot cannot be used; open again later, with the next count.
            BrokerUnavailable: it may have happened; open again with the next count.
        """

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Settle `verdicts`, then bring what `wants` asks for: one round trip, each message moved atomically.

        Within a slot messages come in priority order (0 first), then in the order in which the broker took them.
        Deferred messages whose time is not after `now` (seconds since the epoch) first go to the back of their queue.

        What one round trip does is bounded in bytes and time: it may bring fewer than wanted where messages are big or
        many come due at once, but brings something while there is anything; such a slot is not `drained`. The order is
        kept: what came due earlier than another message was published or came due is brought before it.

        Raises:
            BrokerUnavailable: any part of it may have happened; open the slots again.
        """

    def idle(self, timeout: float) -> set[tuple[str, Slot]]:
        """Wait until a drained slot may have a message, `wake` is called, or `timeout` seconds are over.

        Returns the slots (keyspace, slot) to look at: each drained one that may have got a message since. A slot is
        named once, then not again before a `fetch` found it drained again. With a timeout of 0 it only looks. Deferred
        messages do not end it: wait no longer than to the next `Fetched.due`.

        Raises:
            BrokerUnavailable: the connection broke; open the slots again.
        """

    def wake(self) -> None:
        """Make an `idle` under way, or the next one, return at once. Any thread may call this."""

    def close_slot(self, tenure: Tenure) -> None:
        """Stop waiting for this slot in `idle`. What is in flight stays so until the next `open`."""

    def depth(self, keyspace: str, slots: Collection[Slot]) -> Mapping[Slot, Depth]:
        """Return how much stands in these slots, whoever owns them; no bodies are read that could be big."""

    def dead(self, keyspace: str, *, after: str = "", limit: int | None = None) -> Sequence[Dead]:
        """List buried messages of a keyspace without their bodies, oldest first.

        At most `limit` (None: all) of those that were buried after the one with the id `after` ("": from the first).
        This and the other verbs for buried messages raise `SlotBroken` if a record of them cannot be used.
        """

    def dead_message(self, keyspace: str, dead_id: str) -> Dead | None:
        """Return a buried message with its body, or None if there is no such one."""

    def dead_count(self, keyspace: str) -> int:
        """Return how many messages of a keyspace are buried."""

    def trim_dead(self, keyspace: str, *, limit: int, before: float) -> int:
        """Drop the oldest buried messages: those beyond `limit` (0: no limit), and those buried before a time.

        One bounded step: returns how many were dropped, and there may be more to drop if that is not 0. `before` is in
        seconds since the epoch and compared with `at` of the message's info.
        """

    def requeue(self, keyspace: str, dead_id: str) -> bool:
        """Put a buried message at the back of its slot queue, its marks forgotten; False if there is no such one."""

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """Delete a buried message for ever; False if there is no such one."""

    def close(self) -> None:
        """Let go of every connection. May be called twice."""


def sent_at(body: bytes | None) -> float | None:
    """Return when a message was sent (seconds since the epoch), where its stamp tells; the rest is not read."""
    found = _SENT_AT.search(body) if body is not None else None
    return float(found[1]) if found is not None else None


def dead_slot(dead_id: str) -> Slot | None:
    """Return the slot of a buried message by its id; None: it is no such id."""
    slot, _, tag = dead_id.rpartition("-")
    if not (tag.isascii() and tag.isdigit()):
        return None
    if slot.isascii() and slot.isdigit():
        return int(slot)
    return slot if slot.startswith(WORKER_QUEUE) else None
