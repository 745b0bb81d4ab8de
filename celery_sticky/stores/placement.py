"""What a directory must do: keep which worker may run which key, and which worker has pinned it, in one keyspace.

Only keyspaces that direct keys to workers have one. It stands beside the ownership document, in the same store, for
both count only while the incarnation they name has a heartbeat counter there: an eviction makes them void in the same
atomic step as it lets others act, and the evicted worker's own trust has ended before.

A directory object is used by one thread, except `wake`, which any thread may call. Every verb is one atomic step at the
server. `StoreUnavailable` from a verb means: it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View

Version = tuple[int, int]
"""Version and generation of a document."""
NO_VERSION: Version = (0, 0)
START = "0"
"""Where a sweep begins, and has ended."""


@dataclass(frozen=True, slots=True)
class PinMoved:
    """Hint: the pin of a key has changed."""

    key: str
    concerned: frozenset[str] = frozenset()
    """The live incarnations that have claimed the key, or had pinned it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the directory says of keys."""

    changed: bool
    """The document is not the known one (any more)."""
    view: View | None
    """The document, where it has changed; None: there is none."""
    pins: Mapping[str, str]
    """Key -> incarnation of the live worker that has pinned it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker has concluded of a key."""

    key: str
    pin: str
    """The incarnation it takes for the one that has pinned the key; empty: nobody."""
    run: bool
    """Whether it wants to run the key; else it only wants to know if it is right about the pin."""


class Said(StrEnum):
    """What is answered to a wish."""

    GRANTED = "granted"
    """The key is the worker's to run, until it releases it; `Answer.token` is higher than any before it."""
    HELD = "held"
    """Another live incarnation (`Answer.by`) may run it."""
    PINNED = "pinned"
    """The pin is another one: by `Answer.by`, or nobody's."""
    RIGHT = "right"
    """It did not want to run it, and is right about the pin."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a wish."""

    said: Said
    token: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """The answer to wishes. Where the worker is no member, or the document has changed, nothing was done."""

    member: bool
    changed: bool = False
    view: View | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)


class PlacementStore(Protocol):
    """Where claims and pins of one keyspace are written down."""

    def look(self, known: Version, keys: Collection[str]) -> Look:
        """Return the document, if it is not the known one, and who has pinned these keys."""

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """Claim keys for a member, if the document still is the known one and their pins are as it thinks.

        A key is refused while another incarnation that has a counter may run it. Claimed again, it gets a new token.
        `call` grows from call to call of one incarnation, `release` included: one that arrives late is refused.
        Refused altogether (`Claims.member` False) if the incarnation has no counter, and where the document was
        written to another run of the store, which may have lost claims.

        `beats` is what the member's counter was at least. Where it is less, an older copy of the store has come back,
        perhaps with the same document: claims were forgotten, and others are there again. Then the document is removed,
        so that nobody acts on it, and a fresh one makes all claims void.
        """

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        """Give keys back that this incarnation has claimed."""

    def holder(self, key: str) -> str:
        """Return the incarnation of the live worker that has claimed a key; empty: none has."""

    def pin(self, worker: str, key: str, *, take: bool) -> str | None:
        """Pin a key for the worker of this name; return the name of the live worker that has it instead, or None.

        `take`: whoever has it. It lasts as long as the worker's incarnation. A change is told by a hint.

        Raises:
            NotAMember: no live incarnation of this name is enlisted.
        """

    def unpin(self, worker: str, key: str) -> bool:
        """Let a key go; False if it was not pinned by this worker. That is told by a hint."""

    def enlist(self, worker: str, incarnation: str) -> None:
        """Note that there is a worker queue of this worker, and who it is now."""

    def enlisted(self) -> Mapping[str, str]:
        """Return every worker with a worker queue, and the last incarnation of it."""

    def strike(self, worker: str, incarnation: str) -> None:
        """Forget a worker, if this still is its last incarnation."""

    def sweep(self, start: str = START) -> str:
        """Remove what names incarnations without a counter, a part at a time; return where to go on, at last `START`.

        Which pins it removes is kept for `lost`.
        """

    def lost(self, worker: str, incarnations: Collection[str]) -> Collection[str]:
        """Return keys that these incarnations of a worker had pinned, and that another worker or a sweep has ended.

        Not those that the worker has pinned anew. They are kept until `forget`, or for a day.
        """

    def forget(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """The worker knows that these pins of its incarnations are lost."""

    def watch(self, timeout: float) -> Collection[ViewChanged | PinMoved]:
        """Wait at most `timeout` seconds for a change of document or pins; empty: time is up, or `wake` was called.

        Signals are hints: they may be lost, late, repeated. The first call subscribes, and returns at once.
        """

    def wake(self) -> None:
        """Make a `watch` under way, or the next one, return at once. Any thread may call this."""

    def close(self) -> None:
        """Let go of every connection. May be called twice."""
