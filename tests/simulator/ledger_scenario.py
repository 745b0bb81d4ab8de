"""How the tasks of a simulated world use the ledger of runs, and which messages are published twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

COPIED = 0.2
"""The share of tasks whose message is published again, as by a sender that got no answer."""
IDENTICAL = 0.3
"""The share of tasks whose copies are the same bytes: a client repeats the request. Kombu numbers what it repeats."""
DELAYS = (0.0, 0.02, 0.5, 2.0, 8.0, 25.0)
"""Typical seconds after which a message is published again."""


class Delivery(StrEnum):
    """What a task promises about its runs."""

    PLAIN = "plain"
    """Nothing is recorded of it."""
    DEDUPE = "deduplicated"
    """What has finished is not run again."""
    ONCE = "at most once"
    """A run is claimed before it starts, and never starts twice."""


DELIVERIES = (Delivery.ONCE,) * 4 + (Delivery.DEDUPE,) * 3 + (Delivery.PLAIN,) * 2


@dataclass(frozen=True, slots=True)
class Ledgered:
    """What a seed decides about the ledger."""

    claim_ahead: int
    deliveries: Sequence[Delivery]
    """Of each task."""
    copies: Sequence[tuple[float, ...]]
    """Seconds after which the message of each task is published again."""
    identical: Sequence[bool]
    """Whether its copies do not differ in a single byte."""


def draw_ledger(seed: int, tasks: int, concurrency: int) -> Ledgered:
    """Return how so many tasks use the ledger; drawn separately, so that the rest of the world stays as it is."""
    rng = Random(f"once {seed}")
    ahead = rng.randint(1, concurrency)
    deliveries = [rng.choice(DELIVERIES) for _ in range(tasks)]
    copies = [tuple(_copies(rng)) for _ in range(tasks)]
    identical = [kind is not Delivery.PLAIN and rng.random() < IDENTICAL for kind in deliveries]
    return Ledgered(ahead, deliveries, copies, identical)


def _copies(rng: Random) -> list[float]:
    number = 0 if rng.random() >= COPIED else rng.choice((1, 1, 1, 2))
    return [rng.choice(DELAYS) * rng.uniform(0.8, 1.2) for _ in range(number)]
