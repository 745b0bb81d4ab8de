"""One slot whose rows are unusable, or whose data the database refuses: the other slots go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.sql_broker import OnSql

from celery_sticky.errors import SlotBroken
from celery_sticky.queues import Delivery, Opening, SlotQueues, Want
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.testing.queue_steps import (
    FIRST,
    HERE,
    NEXT,
    NOW,
    ack,
    bodies,
    bury,
    defer,
    mark,
    open_slot,
    settle,
    take,
    tenure,
)

OTHERS = [tenure(slot=slot) for slot in (8, 9, 10)]
ALL = [OTHERS[0], FIRST, *OTHERS[1:]]
QUEUE = slot_number("default", 7, "sticky")


@pytest.fixture
def queues(on_sql: OnSql) -> Iterator[SlotQueues]:
    """A driver with four slots open, of which slot 7 will have trouble."""
    queues = on_sql.driver()
    assert all(not isinstance(answer, Exception) for answer in queues.open([Opening(one) for one in ALL]))
    yield queues
    queues.close()


def fetch_all(on_sql: OnSql, queues: SlotQueues) -> list[Delivery]:
    """Publish two messages to each slot and fetch them, those of slot 7 last."""
    for one in ALL:
        on_sql.publish("default", one.slot, b"1")
        on_sql.publish("default", one.slot, b"2")
    brought = queues.fetch([Want(one, 10) for one in ALL], [], NOW).deliveries
    return sorted(brought, key=lambda d: d.tenure.slot == 7)


@contextmanager
def refusing(on_sql: OnSql, table: str, what: str) -> Iterator[None]:
    """A trigger that refuses to INSERT, UPDATE or DELETE rows of slot 7."""
    row, name = ("OLD" if what == "DELETE" else "NEW"), on_sql.database.tables.name(table)
    no, end = "not allowed here", ["DROP TRIGGER refuses"]
    begin = f"CREATE TRIGGER refuses BEFORE {what} ON {name}"
    match on_sql.database.dialect.name:
        case "sqlite":
            make = [f"{begin} WHEN {row}.queue = {QUEUE} BEGIN SELECT RAISE(ABORT, '{no}'); END"]
        case "mysql":
            signal = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{no}'"
            make = [f"{begin} FOR EACH ROW IF {row}.queue = {QUEUE} THEN {signal}; END IF"]
        case _:
            function = f"CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE '{no}'; END$$"
            make = [function, f"{begin} FOR EACH ROW WHEN ({row}.queue = {QUEUE}) EXECUTE FUNCTION refuses()"]
            end = [f"DROP TRIGGER refuses ON {name}", "DROP FUNCTION refuses()"]
    for statement in make:
        on_sql.database.run(statement)
    try:
        yield
    finally:
        for statement in end:
            on_sql.database.run(statement)


def test_a_settlement_that_the_database_refuses_fails_alone(on_sql: OnSql, queues: SlotQueues) -> None:
    brought = fetch_all(on_sql, queues)
    with refusing(on_sql, "message", "DELETE"):
        done = [ack(d) for d in brought]
        on_sql.publish("default", 8, b"3")
        answer = queues.fetch([Want(one, 10) for one in ALL], done, NOW)
        assert {d.tenure.slot for d in answer.confirmed} == {8, 9, 10}
        assert [(d, "not allowed here" in why) for d, why in answer.failed] == [(done[-2], True), (done[-1], True)]
        assert bodies(answer) == [b"3"] and not answer.broken and not answer.refused
    assert settle(queues, *done[-2:]).confirmed == done[-2:], "nothing was forgotten"
    assert on_sql.count("message") == 1


def test_a_slot_that_the_database_refuses_to_serve_is_broken_alone(on_sql: OnSql, queues: SlotQueues) -> None:
    brought = fetch_all(on_sql, queues)
    settle(queues, *[defer(d, NOW + 1) for d in brought])
    with refusing(on_sql, "message", "INSERT"):
        answer = queues.fetch([Want(one, 10) for one in ALL], [], NOW + 2)
        assert {d.tenure.slot for d in answer.deliveries} == {8, 9, 10}
        assert list(answer.broken) == [HERE] and "not allowed here" in answer.broken[HERE]
    assert bodies(take(queues, FIRST, now=NOW + 2)) == [b"1", b"2"]


def test_a_row_that_is_there_already_fails_one_burial(on_sql: OnSql, queues: SlotQueues) -> None:
    """Somebody has deleted the fence of the slot, so its deliveries are numbered from the start again."""
    brought = fetch_all(on_sql, queues)
    settle(queues, bury(brought[-2]))
    on_sql.database.run("DELETE FROM {fence} WHERE queue = %s", [QUEUE])
    open_slot(queues, NEXT)
    (again,) = take(queues, NEXT).deliveries
    assert again.tag.number == brought[-2].tag.number
    on_sql.publish("default", 7, b"3")
    end = bury(again)
    answer = queues.fetch([Want(NEXT, 10)], [end, *[ack(d) for d in brought[:-2]]], NOW)
    assert [d for d, _ in answer.failed] == [end] and len(answer.confirmed) == 6
    assert bodies(answer) == [b"3"]
    assert settle(queues, ack(again)).confirmed == [ack(again)]


def test_a_slot_that_the_database_refuses_to_open_is_broken_alone(on_sql: OnSql, queues: SlotQueues) -> None:
    brought = fetch_all(on_sql, queues)
    kept = {d.tenure.slot: d.tag for d in brought[:-1]}
    openings = [Opening(tenure(slot=one.slot, count=one.open_count + 1), (kept[one.slot],)) for one in ALL]
    with refusing(on_sql, "fence", "UPDATE"):
        answers = dict(zip(ALL, queues.open(openings), strict=True))
        broken = answers.pop(FIRST)
        assert isinstance(broken, SlotBroken) and "not allowed here" in str(broken)
        assert list(answers.values()) == [[kept[one.slot]] for one in OTHERS]
        assert settle(queues, *[ack(d, openings[ALL.index(d.tenure)].tenure) for d in brought[:6:2]]).failed == []
    again = tenure(count=FIRST.open_count + 2)
    assert open_slot(queues, again, [kept[7]]) == [kept[7]]


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"[[1]]\n0:0:1", b"[]\n0:0:1"], ids=["not text", "other groups", "no groups"]
)
def test_a_flight_record_that_cannot_be_read_is_as_good_as_lost(
    on_sql: OnSql, queues: SlotQueues, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    brought = fetch_all(on_sql, queues)
    on_sql.publish("default", 8, b"3")
    (third,) = take(queues, OTHERS[0]).deliveries
    first = on_sql.database.rows("SELECT trip FROM {flight} ORDER BY trip LIMIT 1")[0]
    on_sql.database.run("UPDATE {flight} SET data = %s WHERE trip = %s", [data, first[0]])
    again = tenure(slot=8, count=4)
    kept = open_slot(queues, again, [third.tag, brought[0].tag])
    assert list(kept) == [third.tag], "the other record is whole"
    assert bodies(take(queues, again)) == [b"1", b"2"]
    assert "table flight" in caplog.text
    other = on_sql.driver()
    assert all(not isinstance(one, Exception) for one in other.open([Opening(NEXT), Opening(tenure(slot=9, epoch=9))]))
    assert bodies(take(other, NEXT)) == [b"1", b"2"]
    other.close()


def test_a_row_that_was_deleted_by_hand_is_lost_and_nothing_else(on_sql: OnSql, queues: SlotQueues) -> None:
    brought = fetch_all(on_sql, queues)
    on_sql.database.run("DELETE FROM {message} WHERE queue = %s", [QUEUE])
    on_sql.database.run("DELETE FROM {flight}")
    end = [mark(brought[-2]), defer(brought[-2], NOW + 1), *[ack(d) for d in (*brought[:6], brought[-1])]]
    answer = queues.fetch([Want(one, 10) for one in ALL], end, NOW)
    assert len(answer.confirmed) == len(end) and not answer.failed and not answer.broken
    assert on_sql.count("message") == on_sql.count("deferred") == 0


def test_buried_messages_that_cannot_be_read_are_broken_for_their_keyspace_alone(
    on_sql: OnSql, queues: SlotQueues
) -> None:
    there = tenure(keyspace="other")
    open_slot(queues, there)
    for one in (FIRST, there):
        on_sql.publish(one.keyspace, 7, b"1")
        settle(queues, *[bury(d, '{"reason": "x"}') for d in take(queues, one).deliveries])
    on_sql.database.run("UPDATE {dead} SET info = %s WHERE queue = %s", [b"\xff", QUEUE])
    ((name,),) = on_sql.database.rows("SELECT name FROM {dead} WHERE queue = %s", [QUEUE])
    for ask in (lambda: queues.dead("default"), lambda: queues.dead_message("default", bytes(name).decode())):
        with pytest.raises(SlotBroken, match="info is not UTF-8"):
            ask()
    assert len(queues.dead("other")) == 1 and queues.dead_counts(["default"]) == {"default": 1}
    assert queues.drop("default", bytes(name).decode())


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["epoch", "opens", "opening"])
def test_a_fence_that_is_no_number_breaks_its_slot(on_sql: OnSql, queues: SlotQueues, column: str) -> None:
    """SQLite stores text in a column of numbers."""
    brought = fetch_all(on_sql, queues)
    on_sql.database.run(f"UPDATE {{fence}} SET {column} = 'x' WHERE queue = %s", [QUEUE])
    end = [defer(d, NOW + 1) for d in brought]
    answer = queues.fetch([Want(one, 10) for one in ALL], end, NOW)
    assert [d for d, _ in answer.failed] == end[-2:] and len(answer.confirmed) == 6
    assert list(answer.broken) == [HERE] and f"{column} is 'x', not a number" in answer.broken[HERE]
    other = on_sql.driver()
    opened = other.open([Opening(tenure(slot=one.slot, epoch=9)) for one in ALL])
    assert [isinstance(one, SlotBroken) for one in opened] == [one is FIRST for one in ALL]
    depths = other.depths([("default", one.slot) for one in ALL])
    assert [depth.broken != "" for depth in depths.values()] == [one is FIRST for one in ALL]
    other.close()


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {suspect} (queue, id, starts) VALUES (%s, 1, 'x')",
        "INSERT INTO {deferred} (queue, due, tag, priority, body) VALUES (%s, 'x', 1, 0, 'y')",
    ],
)
def test_other_rows_that_are_no_numbers_break_their_slot(on_sql: OnSql, queues: SlotQueues, statement: str) -> None:
    on_sql.database.run(statement, [QUEUE])
    opened = queues.open([Opening(tenure(slot=one.slot, epoch=9)) for one in ALL])
    assert [isinstance(one, SlotBroken) for one in opened] == [one is FIRST for one in ALL]


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("value", "body"), [("'text'", b"text"), ("5000000000", b"5000000000")])
def test_a_body_that_was_edited_by_hand_is_bytes(on_sql: OnSql, queues: SlotQueues, value: str, body: bytes) -> None:
    on_sql.publish("default", 7, b"1")
    on_sql.database.run(f"UPDATE {{message}} SET body = {value}")
    assert bodies(take(queues, FIRST)) == [body]
