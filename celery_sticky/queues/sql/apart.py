"""One slot's error is that slot's: a trip that fails because of its data is divided until the culprit stands alone.

A database refuses a whole transaction: because a trigger or a check of the database's owner says no, a row is there
already that somebody has inserted by hand, a value is too long. And a row that was edited by hand may be unusable. In
both cases nothing of the transaction has taken effect, so its parts can be tried one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_sticky.errors import BrokerUnavailable, SlotBroken
from celery_sticky.queues.base import Disposition, Fetched, Want
from celery_sticky.sql import Database

BECAUSE_OF_A_SLOT = (SlotBroken, BrokerUnavailable)
"""What a slot's data may raise: see `is_of_a_slot`."""
Part = tuple[Sequence[Want], Sequence[Disposition]]


def is_of_a_slot(database: Database, error: Exception) -> bool:
    """Return whether a transaction has failed because of its data, and has had no effect."""
    return isinstance(error, SlotBroken) or database.has_refused(error)


def check_number(table: str, queue: int, column: str, value: object) -> None:
    """Check a value that was read. SQLite stores whatever somebody else has written, in a column of numbers too.

    Raises:
        SlotBroken: it is no number.
    """
    if not isinstance(value, int | float):
        raise SlotBroken(f"table {table}, queue {queue}: {column} is {value!r}, not a number; correct the row")


def divided(wants: Sequence[Want], dispositions: Sequence[Disposition]) -> list[Part]:
    """Return the parts of a trip, in order: half of its slots each; of one slot, half of its dispositions each.

    One disposition, or what is wanted of one slot, is not divided.
    """
    tenures = [*(one.tenure for one in dispositions), *(want.tenure for want in wants)]
    slots = list(dict.fromkeys((tenure.keyspace, tenure.slot) for tenure in tenures))
    if len(slots) > 1:
        first = set(slots[: len(slots) // 2])
        return [
            (
                [one for one in wants if ((one.tenure.keyspace, one.tenure.slot) in first) is here],
                [one for one in dispositions if ((one.tenure.keyspace, one.tenure.slot) in first) is here],
            )
            for here in (True, False)
        ]
    if len(dispositions) > 1:
        half = len(dispositions) // 2
        return [((), dispositions[:half]), (wants, dispositions[half:])]
    return [part for part in (((), dispositions), (wants, ())) if any(part)]


def failure(wants: Sequence[Want], dispositions: Sequence[Disposition], error: Exception) -> Fetched:
    """Return the answer to a part that cannot be divided."""
    return Fetched(
        failed=[(one, str(error)) for one in dispositions],
        broken={(one.tenure.keyspace, one.tenure.slot): str(error) for one in wants},
    )
