"""Statements about the messages of one trip read these messages, however long their queue is."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues import Opening, Want
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.queues.sql.publish import publish
from celery_sticky.sql import Address, Database
from celery_sticky.testing.queue_steps import FIRST, NOW, ack
from celery_sticky.testing.servers import given

LONG = 3000
BRIEF = 20


@pytest.fixture
def database(sql_url: str) -> Iterator[Database]:
    prefix = f"t{uuid.uuid4().hex[:12]}_"
    database = Database(Address.parse(sql_url), timeout=60.0, unavailable=BrokerUnavailable, prefix=prefix)
    yield database
    database.close()
    given(f"sticky+{sql_url}").clear(prefix)


def explain(database: Database) -> list[str]:
    """Have each statement about messages explained before it runs; return where the plans are written."""
    assert database._link is not None
    plans, run = list[str](), database._link._run
    ask = "EXPLAIN QUERY PLAN" if database.dialect.name == "sqlite" else "EXPLAIN"
    verbs = re.compile(r"\s*\(?(SELECT|WITH|DELETE)")

    def explained(statement: str, said: Any) -> Any:
        if verbs.match(statement) and "message" in statement:
            cursor = run(f"{ask} {statement}", said)
            plans.extend(f"{line} IN {statement[:100]}" for line in cursor.fetchall())
            cursor.close()
        return run(statement, said)

    database._link._run = explained  # type: ignore[method-assign]
    return plans


def reads_whole_queue(database: Database, plan: str) -> bool:
    if database.dialect.name == "sqlite":
        return bool(re.search(r"SCAN (t|\w*message)\b", plan))
    table, kind = plan.split(", ")[2:4]
    return table.strip("'") in ("t", f"{database.tables.prefix}message") and kind.strip("'") not in ("range", "eq_ref")


@pytest.mark.parametrize("sql_url", ["sqlite", "mariadb"], indirect=True)
def test_a_trip_through_a_long_queue_reads_its_own_messages_only(database: Database) -> None:
    for _ in range(LONG // 250):
        publish(database, "sticky.default.7", [b"message"] * 250)
    with closing(SqlQueues(database, prefix="sticky")) as queues:
        queues.open([Opening(FIRST)])
        brought = queues.fetch([Want(FIRST, BRIEF)], [], NOW).deliveries
        plans = explain(database)
        assert len(queues.fetch([Want(FIRST, BRIEF)], [ack(one) for one in brought], NOW).deliveries) == BRIEF
    assert any("DELETE" in plan for plan in plans)
    assert not [plan for plan in plans if reads_whole_queue(database, plan)]
