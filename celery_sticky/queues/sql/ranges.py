"""Parts of queues, and statements that look into many of them. Each part is one range of the primary key.

MySQL and MariaDB use the key for a range only if its bounds are constants: with bounds from another table they read
the queue from its front, with the dead rows there. So they get the bounds as constants. PostgreSQL would plan each of
these parts, so it reads the bounds from a table of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_sticky.sql import Runner
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.text import Piece, chunks

LAST_ID = (1 << 63) - 1
LAST_PRIORITY = (1 << 15) - 1
ORDER = " ORDER BY t.priority, t.id"
"""With it and a LIMIT a planner uses the key, whatever it believes about the number of messages."""


class Range(NamedTuple):
    """A part of a queue: the messages after (`priority`, `after`), up to (`last`, `upto`)."""

    priority: int
    after: int
    last: int
    upto: int


class Window(NamedTuple):
    """The part of a queue below a cursor in which messages may still be committed late, and how many are known."""

    queue: int
    priority: int
    floor: int
    upto: int
    known: int


def above(cursors: Mapping[int, int]) -> Iterable[Range]:
    """Yield the ranges above cursors (priority -> id), in the order of the queue.

    A range reaches up to the next priority that has a cursor: priorities between the two have no messages yet, or were
    not noticed.
    """
    priorities = sorted(cursors)
    for priority, following in zip(priorities, [*priorities[1:], LAST_PRIORITY + 1], strict=True):
        yield Range(priority, cursors[priority], following - 1, LAST_ID)


def within(dialect: Dialect, part: Range) -> Piece:
    """Return the condition that a message `t` of a queue is in a range, in the form for which its key is used."""
    priority, after, last, upto = part
    if dialect.row_values:
        return "(t.priority, t.id) > (%s, %s) AND (t.priority, t.id) <= (%s, %s)", list(part)
    if last == priority:
        return "t.priority = %s AND t.id > %s AND t.id <= %s", [priority, after, upto]
    where = "(t.priority = %s AND t.id > %s OR t.priority > %s AND t.priority <= %s)"  # there `upto` is no bound
    return where, [priority, after, priority, last]


def filled(runner: Runner, dialect: Dialect, parts: Sequence[tuple[int, Range]], condition: str = "") -> set[int]:
    """Return the queues that have a message in one of these parts of them.

    `condition` is one more for the message `t`, or empty.
    """
    found: set[int] = set()
    for some in chunks(parts):
        statement, said = _filled(dialect, some, condition)
        found |= {row[0] for row in runner.rows(statement, said)}
    return found


def crowded(runner: Runner, dialect: Dialect, windows: Sequence[Window]) -> list[int]:
    """Return the indices of the windows that have more rows than are known; each is of another queue or priority."""
    found: list[int] = []
    for some in chunks(list(enumerate(windows))):
        numbers = {(window.queue, window.priority): (number, window.known) for number, window in some}
        for queue, priority, count in runner.rows(*_counts(dialect, [window for _, window in some])):
            number, known = numbers[queue, priority]
            found += [number] if count > known else []
    return sorted(found)


def _filled(dialect: Dialect, parts: Sequence[tuple[int, Range]], condition: str) -> Piece:
    also = f" AND {condition}" if condition else ""
    if dialect.row_values:
        table, said = dialect.table(
            "w", ("queue", "priority", "after", "last", "upto"), [(q, *part) for q, part in parts]
        )
        return (
            f"SELECT w.queue FROM {table} WHERE (SELECT 1 FROM {{message}} t WHERE t.queue = w.queue "
            "AND (t.priority, t.id) > (w.priority, w.after) AND (t.priority, t.id) <= (w.last, w.upto)"
            f"{also}{ORDER} LIMIT 1) = 1"
        ), said
    selects, said = list[str](), list[Any]()
    for queue, part in parts:
        where, bounds = within(dialect, part)
        selects.append(f"(SELECT t.queue FROM {{message}} t WHERE t.queue = %s AND {where}{also}{ORDER} LIMIT 1)")
        said += (queue, *bounds)
    return " UNION ALL ".join(selects), said


def _counts(dialect: Dialect, windows: Sequence[Window]) -> Piece:
    """Return a statement that counts the messages in windows, by queue and priority."""
    rows = [window[:4] for window in windows]
    if dialect.row_values:
        table, said = dialect.table("w", ("queue", "priority", "floor", "upto"), rows)
        return (
            f"SELECT w.queue, w.priority, (SELECT COUNT(*) FROM {{message}} t WHERE t.queue = w.queue "
            f"AND t.priority = w.priority AND t.id > w.floor AND t.id <= w.upto) FROM {table}"
        ), said
    one = "(t.queue = %s AND t.priority = %s AND t.id > %s AND t.id <= %s)"
    return (
        # Another key, that of the ids alone, is also one for messages of other queues.
        "SELECT t.queue, t.priority, COUNT(*) FROM {message} t FORCE INDEX (PRIMARY) "
        f"WHERE {' OR '.join([one] * len(rows))} GROUP BY t.queue, t.priority"
    ), [value for row in rows for value in row]
