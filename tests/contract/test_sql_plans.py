"""Statements that look into many queues read ranges of the primary key, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues import Opening, Want
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.sql import Address, Database
from celery_sticky.testing.queue_steps import NOW, ack, tenure
from celery_sticky.testing.servers import given
from celery_sticky.transport.sql.claims import Claims
from celery_sticky.transport.sql.claims import Want as Room
from celery_sticky.transport.sql.consumers import Consumers

SLOTS = 256
EACH = 200
"""Messages of each slot."""
TENURES = [tenure(slot=slot) for slot in range(SLOTS)]
QUEUES = [slot_number("default", slot, "sticky") for slot in range(SLOTS)]
PREFIX = "plans_"


class Explained(Database):
    """A database that explains every statement about messages before it runs it."""

    plans: list[tuple[str, list[tuple[Any, ...]]]]
    """Each statement with the rows of its plan."""

    def __init__(self, url: str) -> None:
        super().__init__(Address.parse(url), timeout=60.0, unavailable=BrokerUnavailable, prefix=PREFIX)
        self.plans = []
        self.explains = False
        self.rows("SELECT 1")
        assert self._link is not None
        run = self._link._run

        def explained(statement: str, said: Any) -> Any:
            if (
                self.explains
                and statement.lstrip().startswith(("SELECT", "(SELECT", "WITH"))
                and "_message" in statement
            ):
                cursor = run(f"EXPLAIN {statement}", said)
                self.plans.append((statement, list(cursor.fetchall())))
                cursor.close()
            return run(statement, said)

        self._link._run = explained  # type: ignore[method-assign]

    def analyze(self) -> None:
        for table in ("message", "claim"):
            self.rows(f"ANALYZE TABLE {{{table}}}") if self.dialect.name == "mysql" else self.run(
                f"ANALYZE {{{table}}}"
            )


@pytest.fixture
def database(server_url: str) -> Iterator[Explained]:
    given(f"sticky+{server_url}").clear(PREFIX)
    database = Explained(server_url)
    yield database
    database.close()
    given(f"sticky+{server_url}").clear(PREFIX)


def load(database: Explained) -> None:
    """Add messages to each slot; another consumer has claimed some."""
    if database.dialect.name == "mysql":
        numbers = " UNION ALL ".join(f"SELECT {queue}" for queue in QUEUES)
        database.run(
            f"INSERT INTO {{message}} (queue, priority, body) SELECT q.*, 0, REPEAT('x', 100) "
            f"FROM ({numbers}) q, seq_1_to_{EACH}"
        )
    else:
        database.run(
            "INSERT INTO {message} (queue, priority, body) SELECT q, 0, decode(repeat('78', 100), 'hex') "
            f"FROM unnest(%s::bigint[]) q, generate_series(1, {EACH})",
            [QUEUES],
        )

    columns = "queue, priority, id"
    database.run(
        f"INSERT INTO {{claim}} ({columns}, consumer) SELECT {columns}, %s FROM {{message}} WHERE MOD(id, 10) = 0",
        [b"x"],
    )


def scans(database: Explained) -> list[str]:
    """Return the lines of plans that read messages or claims otherwise than by bounds of the primary key."""
    found = _scans_of_mysql if database.dialect.name == "mysql" else _scans_of_postgresql
    assert database.plans
    lines = {f"{line} IN {statement[:200]}" for statement, plan in database.plans for line in found(statement, plan)}
    return sorted(lines)


def _scans_of_mysql(statement: str, plan: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    for _, _, table, kind, _, key, *_ in plan:
        single = key == "PRIMARY" or ".id IN " in statement  # ids are unique, whatever the queue
        if table in ("t", "m", "c", f"{PREFIX}message") and not (single and kind in ("range", "eq_ref", "const")):
            yield f"{table}: {kind} of {key}"


def _scans_of_postgresql(statement: str, plan: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    lines = [str(row[0]).strip() for row in plan]
    for number, line in enumerate(lines):
        if re.search(r"Seq Scan on plans_(message|claim)|Sort Key: (t|plans_message)\.priority|JIT:", line):
            yield line
        if "Index" in line and "plans_message" in line and "Scan" in line:
            bounds = lines[number + 1]
            if not re.search(r"ROW\(priority, id\) >|\(id > |\(id = ", bounds):
                yield f"{line}: {bounds}"


def use(database: Explained) -> None:
    """Fetch, settle, wait and claim with cursors in the middle of each queue."""
    queues = SqlQueues(database, prefix="sticky")
    queues.open([Opening(one) for one in TENURES])
    brought = queues.fetch([Want(one, 2) for one in TENURES], [], NOW).deliveries
    claims = Claims(database, Consumers(database, 60.0).register())
    rooms = [Room(queue, 7) for queue in QUEUES[:4]]
    claims.trip((), (), rooms, {7: 400})
    database.explains = True
    queues.fetch([Want(one, 2) for one in TENURES], [ack(one) for one in brought[:64]], NOW)
    queues._waiting.add([("default", slot) for slot in range(SLOTS)], brought=False)
    queues._waiting._look()
    queues._late.look(queues._exchange.slots.values())
    claims.look(QUEUES)
    claims.trip((), (), rooms, {7: 100})
    database.explains = False
    queues.close()


@pytest.mark.parametrize("known", [True, False], ids=["after ANALYZE", "with the statistics of the empty table"])
def test_looks_read_ranges_of_the_primary_key(database: Explained, known: bool) -> None:
    database.analyze()
    load(database)
    if known:
        database.analyze()
    use(database)
    assert not scans(database), "\n".join(scans(database))
