"""What a driver of slot queues guarantees, and how it works, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Fence(StrEnum):
    """How a broker keeps a slot's former owner out."""

    EPOCH = "epoch"
    """The broker knows the tenure of the slot, and refuses every other one."""
    CONNECTION = "connection"
    """One connection at a time holds a slot. When it ends, all that it has not settled goes back."""


class Order(StrEnum):
    """The order in which deliveries go back to the front of their queue."""

    FETCH = "fetch"
    """As they were fetched: one that stayed in flight over an opening is before those that were fetched again since."""
    QUEUE = "queue"
    """As they stood in the queue at first."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a driver guarantees, and how it works, as data: printed by `celery sticky doctor` and in the docs table."""

    fenced: bool
    """The broker ignores fetches and dispositions of a former owner."""
    ordered: bool
    """Unsettled messages return to the front of their queue in their original order."""
    atomic: bool
    """A message is always in its queue or in flight, even if its reader dies."""
    deferred: bool
    """A message can wait in the broker for its time."""
    moves: bool = False
    """A message can go from one queue of a keyspace to another in one step (`Outcome.MOVE`)."""
    counts_starts: bool = True
    """The broker counts starts (`Outcome.COUNT_START`). Without it a worker counts its own and forgets them at its end.

    Then `Delivery.attempts` is None, and neither `COUNT_START` nor `UNCOUNT_START` is asked for.
    """
    claims_runs: bool = False
    """The broker keeps a ledger of runs (`Outcome.CLAIM`), which `delivery="at_most_once"` and `dedupe=True` need.

    Claims and dispositions take effect in one step, under the fence.
    """
    epochs_outlive_store: bool = True
    """The broker knows the epochs of slots even if the store loses its data; a worker then continues above them.

    Without it a new document in the store begins with epochs above the store's clock.
    """
    fence: Fence = Fence.EPOCH
    """How a former owner is kept out."""
    priorities: tuple[int, ...] = (0, 3, 6, 9)
    """The priorities that exist, most urgent first. Others are rounded down. (0,): messages have no priorities."""
    returns: Order = Order.FETCH
    """The order in which deliveries go back."""
    exact_idle: bool = True
    """`idle` names a slot once. Without it, it may name a slot once too often."""
    company: int = 16
    """The number of dispositions for which a round trip is worth its cost; fewer wait for others for a moment."""


FULL = Guarantees(fenced=True, ordered=True, atomic=True, deferred=True, moves=True, claims_runs=True)
"""Every guarantee."""
ON_SQL = replace(FULL, returns=Order.QUEUE, exact_idle=False, company=64)
"""Those of the slot queues of a SQL database."""
