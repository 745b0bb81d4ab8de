"""The requests of the courier's flow: what it wants done at the broker, and what else only a thread can do.

Their values are fixed when they are yielded, however late they are performed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, SlotQueues, Tenure, Want

Answer = TypeVar("Answer")


class BrokerRequest(Protocol):
    """A request to the broker: one method of `SlotQueues` with its arguments. It raises what that method raises."""

    def __call__(self, queues: SlotQueues, /) -> object:
        """Make the request."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open slots in one round trip. Answer: one for each, in order."""

    openings: Sequence[Opening]

    def __call__(self, queues: SlotQueues, /) -> Sequence[OpenAnswer]:
        """Make the request."""
        return queues.open(self.openings)


@dataclass(frozen=True, slots=True)
class Release:
    """Give slots back in one round trip."""

    tenures: Sequence[Tenure]

    def __call__(self, queues: SlotQueues, /) -> None:
        """Make the request."""
        queues.release(self.tenures)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Settle, then fetch, in one round trip."""

    wants: Sequence[Want]
    dispositions: Sequence[Disposition]
    now: float

    def __call__(self, queues: SlotQueues, /) -> Fetched:
        """Make the request."""
        return queues.fetch(self.wants, self.dispositions, self.now)


@dataclass(frozen=True, slots=True)
class Idle:
    """Wait for a message in an empty slot, or a wake-up. Answer: the slots that may have received one."""

    seconds: float

    def __call__(self, queues: SlotQueues, /) -> set[SlotId]:
        """Make the request."""
        return queues.idle(self.seconds)


@dataclass(frozen=True, slots=True)
class TrimDead:
    """Drop one batch of buried messages beyond the limits. Answer: their number."""

    keyspace: str
    limit: int
    before: float

    def __call__(self, queues: SlotQueues, /) -> int:
        """Make the request."""
        return queues.trim_dead(self.keyspace, limit=self.limit, before=self.before)


@dataclass(frozen=True, slots=True)
class CountDead:
    """Count the buried messages of a keyspace."""

    keyspace: str

    def __call__(self, queues: SlotQueues, /) -> int:
        """Make the request."""
        return queues.dead_count(self.keyspace)


@dataclass(frozen=True, slots=True)
class Connect:
    """Make a connection to the broker, for the requests that follow."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, if there is one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before another attempt to reach the broker. Nothing cuts this short."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unexpected:
    """Report an error that the flow does not know. It then connects again, as after a lost connection."""

    error: Exception


Request = BrokerRequest | Connect | Close | Pause | Unexpected
Flow = Generator[Request, Any, Answer]
BrokerFlow = Generator[BrokerRequest, Any, Answer]
