"""The placement of a key in a placed keyspace: the worker that pinned it, or the one that `assign` returns.

This module is pure: it uses no store and no clock. Plain keyspaces do not use it; there a key belongs to its slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jump import hash as jump_hash

from celery_sticky.errors import AssignmentFailed, InvalidKey, InvalidSettings, KeyspaceMismatch, NotPinned, NoWorker
from celery_sticky.keys import HASH_NAME, check_keyspace, hash_key, slot_for
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, View
from celery_sticky.slots import WorkerQueue

MOST_SLOTS = 65536
UNDELIVERED_LIMIT = 1_000
UNDELIVERED_TTL = 86400.0
"""Default bounds of the dead queue of a keyspace that refuses unpinned keys, in messages and seconds: a message to a
client that is gone is of no use later, and there may be one for each client that goes."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker, as passed to an `assign` function."""

    name: str
    """Its node name, as in `celery -n`."""
    joined: int = 0
    """Grows with each worker that joins: an order, not a time."""
    weight: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict, compare=False)
    """`sticky_attributes` of that worker, and `version`."""


Assign = Callable[[str, Sequence[Worker]], Any]


def jump(key: str, workers: Sequence[Worker]) -> Worker:
    """Hash the key onto the live workers, oldest first: `Keyspace(name, assign=jump)`.

    This is simple but moves many keys: when a worker in the middle of ten leaves, half of all keys move.
    """
    return workers[jump_hash(hash_key(key.encode()), len(workers))]


class Unpinned(StrEnum):
    """Destination of a key that no live worker has pinned."""

    SLOT = "slot"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class DeadBounds:
    """How many buried messages of a keyspace are kept, and for how long; the oldest are dropped."""

    limit: int = 0
    """0: all."""
    ttl: float = 0.0
    """Seconds; 0: forever."""

    def __bool__(self) -> bool:
        return bool(self.limit or self.ttl)


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace and the placement of its keys; `Keyspace("name")` alone is a plain keyspace.

    ```python
    Keyspace("sessions", assign=lambda key, workers: workers[0], version="2")
    Keyspace("clients", pins=True, unpinned="refuse")
    ```

    Raises:
        InvalidSettings: a value is invalid, or two values contradict each other.
    """

    name: str
    slots: int | None = None
    """None: `sticky_slots`."""
    assign: Assign | None = None
    """Called as `assign(key, workers)`; returns one of the workers, or its name."""
    pins: bool = False
    """Whether workers may pin keys."""
    unpinned: str = Unpinned.SLOT
    """`slot`: a key without a pin goes to its slot's owner (or where `assign` says); `refuse`: it cannot be sent to."""
    version: str = ""
    """Version of the `assign` function. Change it whenever the function's results change: workers of different
    versions then cannot share the keyspace."""
    dead_limit: int | None = None
    """How many buried messages of the keyspace are kept; 0: all. None: `sticky_dead_limit`; if that is off and the
    keyspace refuses unpinned keys, 1,000."""
    dead_ttl: float | None = None
    """How long they are kept, in seconds; 0: forever. None: `sticky_dead_ttl`; if that is off and the keyspace refuses
    unpinned keys, 86,400 (a day)."""

    def __post_init__(self) -> None:
        try:
            check_keyspace(self.name)
        except InvalidKey as error:
            raise InvalidSettings(str(error)) from error
        who = f"keyspace {self.name!r}"
        slots = self.slots
        if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int)):
            raise InvalidSettings(f"{who}: slots is {slots!r}: it must be a whole number")
        if slots is not None and not 1 <= slots <= MOST_SLOTS:
            raise InvalidSettings(f"{who}: slots is {slots!r}: it must be 1 to {MOST_SLOTS}")
        if self.assign is not None and not callable(self.assign):
            raise InvalidSettings(f"{who}: assign is {self.assign!r}: it must be a function of key and workers")
        if not isinstance(self.pins, bool):
            raise InvalidSettings(f"{who}: pins is {self.pins!r}: it must be True or False")
        if self.unpinned not in tuple(Unpinned):
            raise InvalidSettings(f"{who}: unpinned is {self.unpinned!r}: it must be 'slot' or 'refuse'")
        if self.unpinned == Unpinned.REFUSE and not self.pins:
            raise InvalidSettings(f"{who}: unpinned='refuse' needs pins=True")
        if self.dead_limit is not None and not (type(self.dead_limit) is int and self.dead_limit >= 0):
            raise InvalidSettings(f"{who}: dead_limit is {self.dead_limit!r}: it must be a whole number of at least 0")
        if self.dead_ttl is not None and not (type(self.dead_ttl) in (int, float) and 0 <= self.dead_ttl < math.inf):
            raise InvalidSettings(f"{who}: dead_ttl is {self.dead_ttl!r}: it must be at least 0 seconds")
        if self.assign is not None and not (self.version or getattr(self.assign, "__qualname__", "")):
            raise InvalidSettings(f"{who}: its assign function has no name to identify it by: set version=…")

    def dead_bounds(self, limit: int, ttl: float) -> DeadBounds:
        """Return the bounds of its dead queue; `limit` and `ttl` are the settings."""
        refuses = self.unpinned == Unpinned.REFUSE
        return DeadBounds(
            (limit or (UNDELIVERED_LIMIT if refuses else 0)) if self.dead_limit is None else self.dead_limit,
            (ttl or (UNDELIVERED_TTL if refuses else 0.0)) if self.dead_ttl is None else float(self.dead_ttl),
        )

    @property
    def placed(self) -> bool:
        """Whether this is a placed keyspace: its keys can go to single workers, not only to slots."""
        return self.pins or self.assign is not None

    @property
    def assignment(self) -> str:
        """Name of the `assign` function, with the version if there is one."""
        name = str(getattr(self.assign, "__qualname__", type(self.assign).__name__))
        return f"{name}@{self.version}" if self.version else name

    @property
    def placed_by(self) -> str:
        """Description of how its keys are placed, for people."""
        return " and ".join((*(("pins",) if self.pins else ()), *((self.assignment,) if self.assign else ())))

    @property
    def hash_name(self) -> str:
        """Name of the placement, stored in the keyspace's document. Workers with another name may not take part."""
        assigned = f" assign={self.assignment}" if self.assign is not None else ""
        return HASH_NAME + assigned + (" pins" if self.pins else "")


def workers_of(view: View) -> tuple[Worker, ...]:
    """Return the workers that can be given keys: live, not leaving, oldest first."""
    found = (Worker(m.name, m.joined, m.weight, m.attributes) for m in view.active if HAS_WORKER_QUEUE in m.attributes)
    return tuple(sorted(found, key=lambda worker: (worker.joined, worker.name)))


def check_same(keyspace: Keyspace, view: View) -> None:
    """Check that the keyspace's workers use the same placement as this process.

    Raises:
        KeyspaceMismatch: they do not.
    """
    if view.hash != keyspace.hash_name:
        raise KeyspaceMismatch(
            f"the workers of keyspace {keyspace.name!r} are configured with {view.hash!r}, "
            f"this process with {keyspace.hash_name!r}. {how_to_agree(keyspace.name, view, view.slots)}"
        )


def how_to_agree(keyspace: str, view: View, slots: int) -> str:
    """Return advice for a process whose number of slots, or whose placement, differs from its keyspace's."""
    if slots != view.slots:
        return (
            f"A keyspace cannot change its number of slots: give {keyspace!r} {view.slots} slots here, or use another "
            "keyspace"
        )
    placed_by = view.hash.removeprefix(HASH_NAME).strip()
    said = f"with keys placed by {placed_by}" if placed_by else "as a plain keyspace, without assign and pins"
    return (
        f"Declare {keyspace!r} here {said}. Or change it everywhere: call sticky.jobs.shutdown({keyspace!r}) where the "
        f"old declaration is in use, let its queues run empty, stop its workers, run `celery sticky init --force "
        f"--keyspace {keyspace}`, start the workers with this declaration, call sticky.jobs.reopen({keyspace!r})"
    )


def assigned(keyspace: Keyspace, key: str, workers: Sequence[Worker]) -> str:
    """Return the name of the worker that the keyspace's `assign` function chooses for the key.

    Raises:
        NoWorker: there is no worker.
        AssignmentFailed: the function raised, or did not return one of the workers.
    """
    if not workers:
        raise NoWorker(f"key {key!r} has no worker: no live worker takes part in keyspace {keyspace.name!r}")
    what = f"keyspace {keyspace.name!r}, key {key!r}: its assign function {keyspace.assignment!r}"
    assign = keyspace.assign
    assert assign is not None
    try:
        chosen = assign(key, workers)
    except Exception as error:
        raise AssignmentFailed(f"{what} raised {error!r}") from error
    name = chosen.name if isinstance(chosen, Worker) else chosen
    if not any(worker.name == name for worker in workers):
        there = ", ".join(worker.name for worker in workers)
        raise AssignmentFailed(f"{what} returned {chosen!r}, which is not one of the workers: {there}")
    return str(name)


def pinner(view: View, incarnation: str | None) -> str | None:
    """Return the name of the worker with this incarnation, if its pins count: it is live and not leaving."""
    if incarnation is None:
        return None
    return next((member.name for member in view.active if member.incarnation == incarnation), None)


def successor(view: View, worker: str) -> str | None:
    """Return the successor that empties the queue of a worker that is gone.

    Return None if the worker is still a member, or if nobody can take over its queue yet.
    """
    if worker in view.members:
        return None
    owner = view.owner[slot_for(WorkerQueue(worker), view.slots)]
    return owner or next((worker.name for worker in workers_of(view)), None)


def placement_of(
    keyspace: Keyspace, key: str, slots: int, view: View, workers: Sequence[Worker], pin: str | None = None
) -> int | WorkerQueue:
    """Return the queue that a key's messages belong in. `pin` is the incarnation that pinned the key, if any.

    Raises:
        NotPinned: no live worker has pinned the key, and the keyspace refuses unpinned keys.
        NoWorker, AssignmentFailed: see `assigned`.
    """
    if keyspace.pins:
        if (name := pinner(view, pin)) is not None:
            return WorkerQueue(name)
        if keyspace.unpinned == Unpinned.REFUSE:
            raise NotPinned(f"key {key!r} of keyspace {keyspace.name!r} is pinned by no live worker")
    if keyspace.assign is not None:
        return WorkerQueue(assigned(keyspace, key, workers))
    return slot_for(key, slots)
