"""The requests of the courier's flow: what it wants done at the broker, and what else only a thread can do.

Their values are fixed when they are yielded, however late they are performed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, SlotQueues, Tenure, Want

Answer = TypeVar("Answer")


class BrokerRequest(Struct, frozen=True):
    """A request to the broker: one method of `SlotQueues` with its arguments. It raises what that method raises."""

    def __call__(self, queues: SlotQueues, /) -> object:
        """Make the request."""
        raise NotImplementedError


class Open(BrokerRequest, frozen=True):
    """Open slots in one round trip. Answer: one for each, in order."""

    openings: Sequence[Opening]

    def __call__(self, queues: SlotQueues, /) -> Sequence[OpenAnswer]:
        """Make the request."""
        return queues.open(self.openings)


class Release(BrokerRequest, frozen=True):
    """Give slots back in one round trip."""

    tenures: Sequence[Tenure]

    def __call__(self, queues: SlotQueues, /) -> None:
        """Make the request."""
        queues.release(self.tenures)


class Fetch(BrokerRequest, frozen=True):
    """Settle, then fetch, in one round trip."""

    wants: Sequence[Want]
    dispositions: Sequence[Disposition]
    now: float

    def __call__(self, queues: SlotQueues, /) -> Fetched:
        """Make the request."""
        return queues.fetch(self.wants, self.dispositions, self.now)


class Idle(BrokerRequest, frozen=True):
    """Wait for a message in an empty slot, or a wake-up. Answer: the slots that may have received one."""

    seconds: float

    def __call__(self, queues: SlotQueues, /) -> set[SlotId]:
        """Make the request."""
        return queues.idle(self.seconds)


class TrimDead(BrokerRequest, frozen=True):
    """Drop one batch of buried messages beyond the limits. Answer: their number."""

    keyspace: str
    limit: int
    before: float

    def __call__(self, queues: SlotQueues, /) -> int:
        """Make the request."""
        return queues.trim_dead(self.keyspace, limit=self.limit, before=self.before)


class TrimLedger(BrokerRequest, frozen=True):
    """Forget one batch of runs that finished before a time. Answer: their number."""

    keyspace: str
    before: float

    def __call__(self, queues: SlotQueues, /) -> int:
        """Make the request."""
        return queues.trim_ledger(self.keyspace, before=self.before)


class CountDead(BrokerRequest, frozen=True):
    """Count the buried messages of keyspaces. Answer: their number, or why they cannot be counted, by keyspace."""

    keyspaces: tuple[str, ...]

    def __call__(self, queues: SlotQueues, /) -> Mapping[str, int | SlotBroken]:
        """Make the request."""
        return queues.dead_counts(self.keyspaces)


class Connect(Struct, frozen=True):
    """Make a connection to the broker, for the requests that follow."""


class Close(Struct, frozen=True):
    """Close the connection, if there is one."""


class Pause(Struct, frozen=True):
    """Wait before another attempt to reach the broker. Nothing cuts this short."""

    seconds: float


class Unexpected(Struct, frozen=True):
    """Report an error that the flow does not know. It then connects again, as after a lost connection."""

    error: Exception


Request = BrokerRequest | Connect | Close | Pause | Unexpected
Flow = Generator[Request, Any, Answer]
BrokerFlow = Generator[BrokerRequest, Any, Answer]
