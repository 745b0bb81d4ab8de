"""A trip as one statement of PostgreSQL: check the fences, delete, fetch, and write the flight record.

All parts of the statement see one snapshot; the fences are locked in their newest version. So if an opening of another
worker commits while the statement waits for its lock, the fence no longer matches, and nothing is done for that slot.
And if a message is found above a cursor, those that were committed before it are found too, also below the cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_sticky.queues.sql.flights import head
from celery_sticky.queues.sql.trip import BUDGET, MESSAGE_COST, Found, Haul, Trip
from celery_sticky.sql import Database, Transaction

STATEMENT = f"""
WITH held AS MATERIALIZED (
    SELECT f.queue FROM {{fence}} f
    JOIN unnest(%(fences)s::bigint[], %(openings)s::bigint[]) AS t(queue, opening) USING (queue, opening)
    WHERE f.incarnation = %(me)s ORDER BY f.queue FOR SHARE OF f
), gone AS (
    DELETE FROM {{message}} m
    USING unnest(%(gone_queues)s::bigint[], %(gone_priorities)s::smallint[], %(gone_ids)s::bigint[])
        AS g(queue, priority, id)
    WHERE m.queue = g.queue AND m.priority = g.priority AND m.id = g.id AND g.queue IN (SELECT queue FROM held)
), ended AS (
    DELETE FROM {{flight}} WHERE incarnation = %(me)s AND trip = ANY (%(ended)s::bytea[])
), found AS MATERIALIZED (
    SELECT w.turn, w.most, m.priority, m.id, m.body, octet_length(m.body) + {MESSAGE_COST} AS size,
        row_number() OVER (PARTITION BY w.turn ORDER BY m.priority, m.id) AS place
    FROM unnest(%(turns)s::int[], %(queues)s::bigint[], %(most)s::int[], %(priorities)s::smallint[],
        %(afters)s::bigint[], %(lasts)s::smallint[], %(uptos)s::bigint[])
        AS w(turn, queue, most, priority, after, last, upto)
    CROSS JOIN LATERAL (
        SELECT priority, id, body FROM {{message}}
        WHERE queue = w.queue AND (priority, id) > (w.priority, w.after) AND (priority, id) <= (w.last, w.upto)
        ORDER BY priority, id LIMIT w.most + 1
    ) m
    WHERE w.queue IN (SELECT queue FROM held)
), late AS MATERIALIZED (
    SELECT DISTINCT w.turn
    FROM unnest(%(late_turns)s::int[], %(late_queues)s::bigint[], %(late_priorities)s::smallint[],
        %(floors)s::bigint[], %(late_uptos)s::bigint[], %(known)s::bigint[])
        AS w(turn, queue, priority, floor, upto, known)
    WHERE known < (
        SELECT count(*) FROM {{message}} m
        WHERE m.queue = w.queue AND m.priority = w.priority AND m.id > w.floor AND m.id <= w.upto
    )
), chosen AS MATERIALIZED (
    SELECT turn, priority, id, body, place <= most AND turn NOT IN (SELECT turn FROM late) AND COALESCE(
        SUM(size) FILTER (WHERE place <= most)
            OVER (ORDER BY turn, priority, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) < {BUDGET} AS fits
    FROM found WHERE place <= most + 1
), written AS (
    INSERT INTO {{flight}} (incarnation, trip, data)
    SELECT %(me)s, %(record)s, convert_to(%(head)s::text || string_agg(
        turn || ':' || priority || ':' || id, ' ' ORDER BY turn, priority, id), 'UTF8')
    FROM chosen WHERE fits HAVING count(*) > 0
)
SELECT queue, NULL::int AS turn, NULL::smallint AS priority, NULL::bigint AS id, NULL::bytea AS body FROM held
UNION ALL SELECT NULL, turn, NULL, NULL, NULL FROM late
UNION ALL SELECT NULL, turn, priority, id, CASE WHEN fits THEN body END FROM chosen
ORDER BY turn NULLS FIRST, priority, id
"""


class OneStatement:
    """See `Carrier`."""

    alone = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def carry(self, trip: Trip, inside: Transaction | None) -> Haul:
        """See `Carrier.carry`."""
        said = _parameters(trip)
        if inside is None:
            rows = self._database.rows(STATEMENT, said)
        else:
            rows = inside.rows(STATEMENT, said)
        held = {queue for queue, turn, *_ in rows if turn is None}
        late = {turn for _, turn, priority, *_ in rows if turn is not None and priority is None}
        return Haul(held, [Found(*row[1:]) for row in rows if row[2] is not None], late)


def _parameters(trip: Trip) -> dict[str, Any]:
    looked = [
        (turn, slot.queue, limit, *part) for turn, (slot, limit) in enumerate(trip.wanted) for part in slot.ranges()
    ]
    windows = [(turn, *window) for turn, window in trip.windows(settled=False)]
    return {
        "me": trip.incarnation,
        "fences": [slot.queue for slot in trip.slots],
        "openings": [slot.opening for slot in trip.slots],
        "ended": [record.encode() for record in trip.ended],
        "record": trip.record.encode(),
        "head": head(trip.groups),
        **_arrays(("turns", "queues", "most", "priorities", "afters", "lasts", "uptos"), looked),
        **_arrays(("late_turns", "late_queues", "late_priorities", "floors", "late_uptos", "known"), windows),
        **_arrays(("gone_queues", "gone_priorities", "gone_ids"), trip.places),
    }


def _arrays(names: Sequence[str], rows: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """Return the columns of a table, each by its name."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
    return dict(zip(names, columns, strict=True))
