"""A server that is full, or holds a key of a wrong type, holds up what cannot go on and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.programs import every_program
from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.errors import SlotBroken
from celery_sticky.queues import Disposition, SlotQueues, Want
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
    move,
    open_slot,
    settle,
    take,
    take_all,
    tenure,
    unmark,
)
from celery_sticky.testing.servers.valkey import ValkeyServer

MB = 1024 * 1024
QUEUE = "sticky.default.7"
OTHER = tenure(slot=8)


@pytest.fixture(params=every_program())
def server(request: pytest.FixtureRequest, valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    return valkey(config={"maxmemory-policy": "noeviction"}, program=request.param)


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    with server.client(decode_responses=False, socket_timeout=20.0) as client:
        yield client


@pytest.fixture
def queues(server: ValkeyServer) -> Iterator[SlotQueues]:
    queues = open_queues(Connection(server.url), prefix="sticky", socket_timeout=20.0)
    for one in (FIRST, OTHER):
        open_slot(queues, one)
    yield queues
    queues.close()


# -- Full ----------------------------------------------------------------------------------------


def test_a_full_server_is_drained_to_the_last_message(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, *[b"%d" % number for number in range(2000)])
    suspects = take(queues, FIRST, limit=50).deliveries
    client.config_set("maxmemory", 1)
    open_slot(queues, NEXT)
    first, second, third, fourth, *_ = take(queues, NEXT, limit=50).deliveries
    assert {first.body, fourth.body} < {d.body for d in suspects} and first.attempts == 0
    assert settle(queues, mark(first), unmark(first)).confirmed == [mark(first), unmark(first)]
    said = [ack(first), defer(second, NOW), bury(third), move(fourth, 8)]
    assert settle(queues, *said).confirmed == said
    open_slot(queues, tenure(epoch=9))
    left, done = 0, list[Disposition]()
    while True:
        fetched = take(queues, tenure(epoch=9), *done, limit=64, now=NOW)
        assert not fetched.failed and not fetched.refused
        done = [ack(d) for d in fetched.deliveries]
        left += len(done)
        if fetched.drained and not done:
            break
    assert left == 1997
    assert bodies(take(queues, OTHER)) == [fourth.body]
    (dead,) = queues.dead("default")
    assert queues.drop("default", dead.id)


def test_big_messages_of_a_full_server_are_fetched_and_settled(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, bytes(2 * MB), b"1" + bytes(2 * MB))
    client.config_set("maxmemory", 1)
    (first,) = take(queues, FIRST).deliveries
    (second,) = take(queues, FIRST, ack(first)).deliveries
    assert [len(first.body), len(second.body)] == [2 * MB, 2 * MB + 1]
    assert settle(queues, defer(second, NOW)).failed == []
    (again,) = take(queues, FIRST).deliveries
    assert again.body == second.body
    assert take(queues, FIRST, ack(again)).drained == {HERE}
    assert {key for key in client.scan_iter() if b":fence" not in key} == set()


def test_what_a_full_server_has_no_room_for_fails_alone_and_goes_again(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, b"1", b"2")
    first, second = take(queues, FIRST).deliveries
    client.config_set("maxmemory", 1)
    longer = defer(first, NOW, bytes(2 * MB))
    answer = settle(queues, longer, ack(second))
    assert answer.confirmed == [ack(second)]
    ((failed, reason),) = answer.failed
    assert failed == longer and "OOM" in reason
    client.config_set("maxmemory", 0)
    assert settle(queues, longer).confirmed == [longer]
    assert len(take(queues, FIRST).deliveries[0].body) == 2 * MB


# -- A wrong type --------------------------------------------------------------------------------

FETCHED_FROM = ["", ":fence", ":flight", "\x06\x163"]


@pytest.mark.parametrize("suffix", FETCHED_FROM)
def test_a_key_of_a_wrong_type_stops_its_slot_and_no_other(client: Any, queues: SlotQueues, suffix: str) -> None:
    client.delete(QUEUE + suffix)
    client.set(QUEUE + suffix, "oops")
    client.lpush("sticky.default.8", b"1")
    fetched = queues.fetch([Want(FIRST, 5), Want(OTHER, 5)], [], NOW)
    assert bodies(fetched) == [b"1"]
    assert fetched.broken == {HERE: f"key {QUEUE}{suffix} is a string, not a {_kind(suffix)}"}
    if suffix in (":fence", ":flight"):
        with pytest.raises(SlotBroken, match="is a string"):
            open_slot(queues, NEXT)
    depths = queues.depths([HERE, ("default", 8)])
    assert depths["default", 8].in_flight == 1
    if suffix != ":fence":
        assert f"{QUEUE}{suffix} is a string" in depths[HERE].broken
    client.delete(QUEUE + suffix)
    if suffix == ":fence":
        open_slot(queues, FIRST)
    assert take(queues, FIRST).broken == {}


@pytest.mark.parametrize("suffix", ["", "\x06\x163"])
def test_what_was_in_flight_stays_there_until_its_list_is_one_again(
    client: Any, queues: SlotQueues, suffix: str
) -> None:
    client.lpush(QUEUE + suffix, b"1", b"2")
    take(queues, FIRST)
    client.set(QUEUE + suffix, "oops")
    with pytest.raises(SlotBroken, match="is a string, not a list"):
        open_slot(queues, NEXT)
    assert take(queues, NEXT).lost == {HERE}, "an opening that did not come to its end lets nothing be fetched"
    client.delete(QUEUE + suffix)
    later = tenure(epoch=NEXT.epoch, incarnation=NEXT.incarnation, count=NEXT.open_count + 1)
    open_slot(queues, later)
    assert [(d.body, d.attempts) for d in take_all(queues, later).deliveries] == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize("suffix", [":deferred", ":marks", ":big"])
def test_a_record_of_a_wrong_type_that_an_opening_finds(client: Any, queues: SlotQueues, suffix: str) -> None:
    client.lpush(QUEUE, b"1")
    client.set(QUEUE + suffix, "oops")
    broken: dict[Any, str] = {}
    try:
        open_slot(queues, NEXT)
    except SlotBroken as error:
        broken = {HERE: str(error)}
    else:
        broken = take(queues, NEXT).broken
    if suffix != ":big":  # is only touched for big messages
        assert broken == {HERE: f"key {QUEUE}{suffix} is a string, not a {_kind(suffix)}"}
    client.delete(QUEUE + suffix)
    later = tenure(epoch=9)
    open_slot(queues, later)
    assert bodies(take_all(queues, later)) == [b"1"]


def test_due_messages_stay_deferred_while_their_list_is_none(client: Any, queues: SlotQueues) -> None:
    client.lpush(f"{QUEUE}\x06\x163", b"1", b"2")
    settle(queues, *[defer(d, NOW) for d in take(queues, FIRST).deliveries])
    client.set(f"{QUEUE}\x06\x163", "oops")
    for _ in range(2):
        assert take(queues, FIRST, now=NOW + 1).broken.keys() == {HERE}
    assert client.zcard(f"{QUEUE}:deferred") == 2
    client.delete(f"{QUEUE}\x06\x163")
    assert bodies(take(queues, FIRST, now=NOW + 1)) == [b"1", b"2"]


@pytest.mark.parametrize("record", ["", ":info", ":order"])
def test_a_burial_that_fails_holds_up_nothing_else(client: Any, queues: SlotQueues, record: str) -> None:
    client.lpush(QUEUE, b"1", b"2", b"3")
    first, second, third = take(queues, FIRST).deliveries
    key = "sticky.default:dead" + record
    client.set(key, "oops")
    answer = settle(queues, bury(first), ack(second), move(third, 8))
    assert answer.confirmed == [ack(second), move(third, 8)]
    ((failed, reason),) = answer.failed
    assert failed == bury(first) and reason.startswith(f"key {key} is a string")
    client.delete(key)
    assert settle(queues, bury(first)).confirmed == [bury(first)]


def test_a_move_to_a_queue_of_a_wrong_type_fails_alone(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, b"1")
    (first,) = take(queues, FIRST).deliveries
    client.set("sticky.default.8", "oops")
    ((failed, reason),) = settle(queues, move(first, 8)).failed
    assert failed == move(first, 8) and reason == "key sticky.default.8 is a string, not a list"
    assert settle(queues, ack(first)).confirmed == [ack(first)]


def _kind(suffix: str) -> str:
    return {":fence": "hash", ":flight": "hash", ":marks": "hash", ":deferred": "zset", ":big": "set"}.get(
        suffix, "list"
    )
