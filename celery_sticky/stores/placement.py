"""The contract of a placement store: record which worker may run which key and which worker pinned it, in one keyspace.

Only placed keyspaces have one. It is in the same store as the ownership document, because claims and pins count only
while the incarnation they name has a heartbeat counter there. An eviction voids them in the same atomic step that lets
others act, and the evicted worker's own trust has ended before.

A placement store object is used by one thread, except `wake`, which any thread may call. Every verb is one atomic step
at the server. If a verb raises `StoreUnavailable`, it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View

Version = tuple[int, int]
"""Version and generation of a document."""
NO_VERSION: Version = (0, 0)
LOST_KEPT = 86400.0
"""Seconds for which lost pins are recorded."""
START = "0"
"""The first cursor of a sweep, and the cursor it returns at its end."""


@dataclass(frozen=True, slots=True)
class PinMoved:
    """Hint: the pin of a key changed."""

    key: str
    concerned: frozenset[str] = frozenset()
    """The live incarnations that have claimed the key, or had pinned it."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The answer to a pin: the key is pinned, or another live worker has it."""

    token: int = 0
    """The token of the pin: higher than that of every earlier pin in the keyspace."""
    incarnation: str = ""
    """The incarnation for which the key is pinned; empty: it is not pinned for this worker."""
    by: str = ""
    """The name of the other worker that has pinned the key."""


@dataclass(frozen=True, slots=True)
class PinRecord:
    """A pin as it is stored."""

    key: str
    worker: str
    incarnation: str
    token: int
    """0: set by a release without tokens."""
    age: float | None
    """Seconds since it was set; None: unknown."""

    @classmethod
    def made(cls, key: str, worker: str, incarnation: str, token: int, now: int) -> Self:
        """Return the record at a time on the store's clock, in milliseconds: a token begins as the time of the pin."""
        return cls(key, worker, incarnation, token, max(0, now - token) / 1000 if token else None)


@dataclass(frozen=True, slots=True)
class Look:
    """The answer to a lookup of keys."""

    changed: bool
    """True if the document differs from the known one."""
    view: View | None
    """The document if it changed; None: there is none."""
    pins: Mapping[str, str]
    """Key -> incarnation of the live worker that pinned it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A worker's request for one key."""

    key: str
    pin: str
    """The incarnation that the worker believes has pinned the key; empty: none."""
    run: bool
    """True if the worker wants to run the key; otherwise it only checks what it knows of the pin."""


class Said(StrEnum):
    """The kinds of answers to a wish."""

    GRANTED = "granted"
    """The worker may run the key until it releases it; `Answer.token` is higher than any before it."""
    HELD = "held"
    """Another live incarnation (`Answer.by`) may run it."""
    PINNED = "pinned"
    """The pin differs: the key is pinned by `Answer.by`, or by nobody."""
    RIGHT = "right"
    """The worker did not want to run the key, and what it knows of the pin is right."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a wish."""

    said: Said
    token: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """The answer to wishes. If the worker is not a member, or the document changed, nothing was done."""

    member: bool
    changed: bool = False
    view: View | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)


class PlacementStore(Protocol):
    """The place where claims and pins of one keyspace are stored."""

    def look(self, known: Version, keys: Collection[str]) -> Look:
        """Return the document, if it differs from the known one, and the pins of these keys."""

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """Claim keys for a member, if the document is still the known one and their pins are as the member believes.

        A key is refused while another incarnation that has a counter may run it. Claiming a key again gives it a new
        token. `call` grows with each call of one incarnation, including `release`: a late call is refused. The whole
        request is refused (`Claims.member` False) if the incarnation has no counter, or if the document was written to
        another run of the store, which may have lost claims.

        `beats` is a lower bound of the member's counter. A lower counter means that an older copy of the store is back,
        perhaps with the same document: it has lost claims and restored released ones. Then the document is removed, so
        that nobody acts on it, and a fresh document makes all claims void.
        """

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        """Release keys that this incarnation claimed."""

    def holder(self, key: str) -> str:
        """Return the incarnation of the live worker that claimed a key; empty: none."""

    def pin(self, worker: str, key: str, *, take: bool) -> Pinned:
        """Pin a key for the worker of this name, under a new token; earlier tokens of the worker hold it no more.

        `take`: take the key even from another worker. A pin lasts as long as the worker's incarnation. A hint signals
        the change.

        Raises:
            NotAMember: no live incarnation of this name is enlisted.
        """

    def unpin(self, worker: str, key: str, pinned: Pinned | None = None) -> bool:
        """Remove this pin of a worker, or whichever it has; return False if that does not hold the key now.

        It does not count as lost, also if another worker has taken it. A hint signals the change.
        """

    def revoke(self, key: str, token: int | None = None) -> str:
        """End the pin of a key on behalf of somebody else; it counts as lost. `token`: only if it is still this one.

        Return the name of the live worker that had it; empty: there is no such pin. A hint signals the change.
        """

    def pins(self, start: str = START) -> tuple[str, Sequence[PinRecord]]:
        """Return some of the pins of live workers, and the next cursor: at the end `START`."""

    def enlist(self, worker: str, incarnation: str) -> None:
        """Record that this worker has a worker queue, and its current incarnation."""

    def enlisted(self) -> Mapping[str, str]:
        """Return every worker that has a worker queue, with its last incarnation."""

    def strike(self, worker: str, incarnation: str) -> None:
        """Forget a worker, if this is still its last incarnation."""

    def sweep(self, start: str = START) -> str:
        """Remove entries of incarnations without a counter, in batches; return the next cursor, at the end `START`.

        Removed pins are recorded for `lost`.
        """

    def lost(self, worker: str, incarnations: Collection[str]) -> Collection[str]:
        """Return keys pinned by these incarnations of a worker whose pins another worker or a sweep ended.

        Keys that the worker pinned again are left out. The records are kept until `forget`, or for a day.
        """

    def forget(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """Drop the records of lost pins, because the worker knows of them."""

    def watch(self, timeout: float) -> Collection[ViewChanged | PinMoved]:
        """Wait at most `timeout` seconds for a change of document or pins; empty: time is up, or `wake` was called.

        Signals are hints: they may be lost, late or repeated. The first call subscribes and returns at once.
        """

    def wake(self) -> None:
        """Make the current `watch`, or the next one, return at once. Any thread may call this."""

    def close(self) -> None:
        """Close every connection. May be called twice."""
