"""No script of ours holds the server for more than 10 ms, whatever the size of messages and queues.

The server's own slow log is the judge. It measures wall time, and the machine of a test may have other things to do:
what it names counts only if the server's main thread was that long on a processor during our requests, but for 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.programs import every_program
from kombu import Connection
from msgspec.structs import replace

from celery_sticky.drivers import open_queues
from celery_sticky.queues import Delivery, SlotQueues
from celery_sticky.redis_wire import Wire
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    NEXT,
    NOW,
    ack,
    bodies,
    bury,
    defer,
    mark,
    move,
    open_slot,
    settle,
    take,
    take_all,
    tenure,
)
from celery_sticky.testing.servers.valkey import ValkeyServer

MB = 1024 * 1024
QUEUE = "sticky.default.7"
LIMIT = 10_000
"""Microseconds."""
SETTINGS = {"slowlog-log-slower-than": str(LIMIT), "slowlog-max-len": "10000"}


@pytest.fixture(params=every_program())
def server(request: pytest.FixtureRequest, valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    return valkey(config=SETTINGS, program=request.param)


@pytest.fixture
def client(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    took: list[float] = []
    call = Wire.call

    def measured(wire: Wire, *requests: bytes) -> list[object]:
        before = on_processor(server.pid)
        replies = call(wire, *requests)
        if requests[0].split(b"\r\n", 3)[2].startswith(b"EVAL"):
            took.append(on_processor(server.pid) - before)
        return replies

    monkeypatch.setattr(Wire, "call", measured)
    with server.client(socket_timeout=60.0, decode_responses=False) as client:
        yield client
        slow = [one for one in client.slowlog_get(10000) if one["command"].upper().startswith(b"EVAL")]
    longest = sorted(took)[: len(took) - len(took) // 100][-5:]  # page faults of a busy machine count as its time too
    text = f"{len(slow)} of {len(took)} scripts are in the slow log; most milliseconds on a processor: {longest}"
    assert took and not (slow and longest[-1] > LIMIT / 1000), text


def on_processor(pid: int) -> float:
    """Return for how many milliseconds the main thread of a process has run so far."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


@pytest.fixture
def queues(server: ValkeyServer) -> Iterator[SlotQueues]:
    queues = open_queues(Connection(server.url), prefix="sticky", socket_timeout=60.0)
    yield queues
    queues.close()


def body(number: int, size: int) -> bytes:
    return b"%08d" % number + bytes(size - 8)


def drain(queues: SlotQueues, under: Any, now: float = NOW) -> list[Delivery]:
    """Fetch and acknowledge until the slot is empty, and forget the bodies but for their first bytes."""
    seen: list[Delivery] = []
    done: list[Delivery] = []
    while True:
        fetched = take(queues, under, *[ack(d) for d in done], limit=64, now=now)
        assert not fetched.refused and not fetched.failed and not fetched.broken
        done = fetched.deliveries
        seen += [replace(d, body=d.body[:8]) for d in done]
        if fetched.drained and not done:
            return seen


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(d.body[:8]) for d in deliveries]


@pytest.mark.parametrize(("count", "size"), [(400, 200_000), (60, MB), (40, 10 * MB), (3, 20 * MB), (2, 50 * MB)])
def test_big_messages_are_fetched_one_after_the_other(client: Any, queues: SlotQueues, count: int, size: int) -> None:
    for number in range(count):
        client.lpush(QUEUE, body(number, size))
    open_slot(queues, FIRST)
    first = take(queues, FIRST, limit=64).deliveries
    assert first and sum(len(d.body) for d in first) <= max(4 * MB, size)
    open_slot(queues, AGAIN)
    assert numbers(drain(queues, AGAIN)) == list(range(count))
    assert {key for key in client.scan_iter() if b":fence" not in key} == set(), "nothing stays behind"


def test_a_few_big_messages_among_many_small_ones(client: Any, queues: SlotQueues) -> None:
    for number in range(3000):
        client.lpush(QUEUE, body(number, 2 * MB if number % 500 == 250 else 300))
    open_slot(queues, FIRST)
    assert numbers(drain(queues, FIRST)) == list(range(3000))


def test_a_big_message_is_deferred_moved_buried_and_requeued(client: Any, queues: SlotQueues) -> None:
    there = tenure(slot=8)
    open_slot(queues, FIRST)
    open_slot(queues, there)
    client.lpush(QUEUE, body(1, 20 * MB), body(2, 20 * MB))
    (first,) = take(queues, FIRST).deliveries
    assert take(queues, FIRST, defer(first, NOW + 1, body(3, 30 * MB))).deliveries[0].body == body(2, 20 * MB)
    open_slot(queues, AGAIN)
    second, third = take(queues, AGAIN, limit=1).deliveries + take(queues, AGAIN, limit=1, now=NOW + 1).deliveries
    assert [second.body, third.body] == [body(2, 20 * MB), body(3, 30 * MB)]
    settle(queues, move(second, 8), bury(third))
    assert [d.body for d in take(queues, there).deliveries] == [body(2, 20 * MB)]
    (dead,) = queues.dead("default")
    whole = queues.dead_message("default", dead.id)
    assert whole and whole.body == body(3, 30 * MB)
    assert queues.depths([("default", 7), ("default", 8)])["default", 8].in_flight == 1
    assert queues.requeue("default", dead.id)
    (again,) = take(queues, AGAIN).deliveries
    assert again.body == body(3, 30 * MB)
    settle(queues, bury(again))
    assert queues.drop("default", queues.dead("default")[0].id)
    open_slot(queues, tenure(slot=8, count=4))
    assert numbers(drain(queues, tenure(slot=8, count=4))) == [2]
    assert {key for key in client.scan_iter() if b":fence" not in key} == set(), "nothing stays behind"


def test_bodies_left_by_a_purge_do_not_stay(client: Any, queues: SlotQueues) -> None:
    open_slot(queues, FIRST)
    client.lpush(QUEUE, body(1, MB), body(2, MB))
    take(queues, FIRST)
    open_slot(queues, AGAIN)
    client.delete(QUEUE)
    take(queues, AGAIN)
    assert {key for key in client.scan_iter() if b":fence" not in key} == set()


def test_the_body_of_a_message_in_a_list_that_nobody_looks_into_stays(
    client: Any, server: ValkeyServer, queues: SlotQueues
) -> None:
    """It was moved, with a priority that is no step of the reader over there: to that one the slot seems empty."""
    there = tenure(slot=8)
    other = open_queues(
        Connection(server.url, transport_options={"priority_steps": [0]}), prefix="sticky", socket_timeout=60.0
    )
    open_slot(queues, FIRST)
    open_slot(other, there)
    client.lpush(f"{QUEUE}\x06\x163", body(1, MB))
    settle(queues, move(take(queues, FIRST).deliveries[0], 8))
    assert take(other, there).drained and not take(other, there).deliveries
    other.close()
    after = tenure(slot=8, count=4)
    open_slot(queues, after)
    assert bodies(take(queues, after)) == [body(1, MB)]


@pytest.mark.parametrize("count", [100_000])
def test_many_deferred_messages_that_come_due_at_once(client: Any, queues: SlotQueues, count: int) -> None:
    """What is published while they are woken goes behind them, and what stood there before goes before them."""
    open_slot(queues, FIRST)
    for start in range(0, count, 10_000):
        some = {b"%016d:0:%08d" % (number, number): NOW + number / count for number in range(start, start + 10_000)}
        client.zadd(f"{QUEUE}:deferred", some)
    client.lpush(QUEUE, b"%08d" % -1)
    open_slot(queues, AGAIN)
    seen = take(queues, AGAIN, limit=64, now=NOW + 10).deliveries
    client.lpush(QUEUE, b"%08d" % count)
    seen += drain(queues, AGAIN, now=NOW + 10)
    assert numbers(seen) == list(range(-1, count + 1))
    assert client.hget(f"{QUEUE}:fence", "cut") is None


def test_many_messages_wait(client: Any, queues: SlotQueues) -> None:
    for start in range(0, 200_000, 1000):
        client.lpush(QUEUE, *[b"%08d" % number for number in range(start, start + 1000)])
    open_slot(queues, FIRST)
    assert numbers(take_all(queues, FIRST).deliveries[:1000]) == list(range(1000))
    assert queues.depths([("default", slot) for slot in range(64)])["default", 7].in_flight == 200_000


def test_an_opening_that_finds_thousands_in_flight(client: Any, queues: SlotQueues) -> None:
    open_slot(queues, FIRST)
    for number in range(3000):
        client.lpush(QUEUE, body(number, 50_000))
    brought = take_all(queues, FIRST).deliveries
    open_slot(queues, NEXT)
    again = take(queues, NEXT, limit=3000).deliveries
    while len(again) < 3000:
        again += take(queues, NEXT, limit=3000).deliveries
    assert numbers(again) == numbers(brought) == list(range(3000))
    assert {d.attempts for d in again} == {0}
    some = again[:500]
    assert len(settle(queues, *[mark(d) for d in some]).confirmed) == 500
    assert len(settle(queues, *[ack(d) for d in some]).confirmed) == 500
    assert client.hlen(f"{QUEUE}:marks") == 2500


def test_an_opening_that_was_broken_off_is_gone_on_with(client: Any, queues: SlotQueues) -> None:
    """Until it has come to its end nothing is fetched, and what goes back later goes in front of what is back."""
    from celery_sticky.queues.redis.openings import GOES_ON
    from celery_sticky.queues.redis.scripts import Script

    open_slot(queues, FIRST)
    for number in range(100):
        client.lpush(QUEUE, body(number, 50_000))
    take_all(queues, FIRST)
    script = Script.load("open")
    said = ["\x06\x16", '["0", "3", "6", "9"]', NEXT.epoch, NEXT.incarnation, NEXT.open_count, 0]
    assert client.eval(script.source, 1, QUEUE, *said) == [GOES_ON, 0]
    assert take(queues, NEXT).lost == {("default", 7)}
    later = tenure(epoch=NEXT.epoch, incarnation=NEXT.incarnation, count=NEXT.open_count + 1)
    open_slot(queues, later)
    again = take_all(queues, later).deliveries
    assert numbers(again) == list(range(100))
    assert {d.attempts for d in again} == {0}, "all of them were in flight at another incarnation"
    assert bodies(take(queues, later)) == []
