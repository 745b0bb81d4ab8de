"""The ledger of runs on a server that is full, or holds a key of a wrong type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.programs import every_program
from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.errors import SlotBroken
from celery_sticky.queues import SlotQueues
from celery_sticky.testing.queue_steps import (
    FIRST,
    NOW,
    ack,
    bodies,
    bury,
    claim,
    defer,
    finishing,
    move,
    open_slot,
    settle,
    take,
    unclaim,
)
from celery_sticky.testing.servers.valkey import ValkeyServer

QUEUE, LEDGER = "sticky.default.7", "sticky.default:ledger"


@pytest.fixture(params=every_program())
def server(request: pytest.FixtureRequest, valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    return valkey(config={"maxmemory-policy": "noeviction"}, program=request.param)


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    with server.client(decode_responses=False) as client:
        yield client


@pytest.fixture
def queues(server: ValkeyServer) -> Iterator[SlotQueues]:
    queues = open_queues(Connection(server.url), prefix="sticky", socket_timeout=20.0)
    open_slot(queues, FIRST)
    yield queues
    queues.close()


def test_runs_are_claimed_finished_and_forgotten_on_a_full_server(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, *(b"%d" % number for number in range(6)))
    deliveries = take(queues, FIRST).deliveries
    client.config_set("maxmemory", 1)
    told = settle(queues, *(claim(one, f"{number}/0") for number, one in enumerate(deliveries)))
    assert [told.claims["default", 7, one.tag] for one in deliveries] == [one.tag for one in deliveries]
    dead = json.dumps({"run": "1/0"})
    ends = [ack(deliveries[0]), bury(deliveries[1], dead), defer(deliveries[2], NOW), move(deliveries[3], 8)]
    said = [finishing(end, f"{number}/0") for number, end in enumerate(ends)] + [unclaim(deliveries[4], "4/0")]
    assert settle(queues, *said).confirmed == said
    assert client.hkeys(LEDGER) == [b"5/0"]
    assert client.zrange(f"{LEDGER}:done", 0, -1, withscores=True) == [(b"%d/0" % n, NOW) for n in range(3)]
    assert queues.requeue("default", queues.dead("default")[0].id)
    queues.forget_run("default", "5/0")
    assert queues.trim_ledger("default", before=NOW + 1) == 2
    assert not client.exists(LEDGER, f"{LEDGER}:done"), "nothing stays behind"


@pytest.mark.parametrize("record", ["", ":done"])
def test_a_ledger_of_a_wrong_type_holds_up_nothing_but_its_runs(client: Any, queues: SlotQueues, record: str) -> None:
    client.lpush(QUEUE, b"1", b"2", b"3", b"4", b"5")
    first, second, third, fourth, fifth = take(queues, FIRST).deliveries
    client.set(LEDGER + record, "oops")
    about_runs = [claim(first), finishing(ack(second)), finishing(bury(third)), finishing(move(fourth, 8))]
    answer = settle(queues, *about_runs, ack(fifth))
    assert answer.confirmed == [ack(fifth)] and not answer.claims
    kind = "zset" if record else "hash"
    assert answer.failed == [(one, f"key {LEDGER}{record} is a string, not a {kind}") for one in about_runs]
    with pytest.raises(SlotBroken, match=f"the ledger in keys {LEDGER} and {LEDGER}:done: "):
        queues.forget_run("default", "id/0")
    if record:
        with pytest.raises(SlotBroken, match=f"the ledger in keys {LEDGER} and {LEDGER}:done: "):
            queues.trim_ledger("default", before=NOW)
    client.delete(LEDGER + record)
    answer = settle(queues, *about_runs)
    assert answer.confirmed == about_runs and answer.claims == {("default", 7, first.tag): first.tag}


@pytest.mark.parametrize("record", ["", ":done"])
def test_a_message_is_not_requeued_while_its_run_cannot_be_forgotten(
    client: Any, queues: SlotQueues, record: str
) -> None:
    client.lpush(QUEUE, b"1", b"2")
    first, second = take(queues, FIRST).deliveries
    settle(queues, finishing(bury(first, json.dumps({"run": "id/0"}))), bury(second))
    known, unknown = queues.dead("default")
    client.rename(f"{LEDGER}:done", "aside")
    client.set(LEDGER + record, "oops")
    with pytest.raises(SlotBroken, match=f"key {LEDGER}{record} is a string"):
        queues.requeue("default", known.id)
    assert queues.requeue("default", unknown.id), "the ledger does not know its run"
    client.delete(LEDGER + record)
    assert queues.requeue("default", known.id)
    assert bodies(take(queues, FIRST)) == [b"2", b"1"]


def test_a_burial_that_fails_does_not_finish_its_run(client: Any, queues: SlotQueues) -> None:
    client.lpush(QUEUE, b"1")
    (first,) = take(queues, FIRST).deliveries
    settle(queues, claim(first))
    client.set("sticky.default:dead", "oops")
    ((failed, reason),) = settle(queues, finishing(bury(first))).failed
    assert failed == finishing(bury(first)) and reason.startswith("key sticky.default:dead is a string")
    assert client.hkeys(LEDGER) == [b"id/0"] and not client.exists(f"{LEDGER}:done")


def test_runs_are_forgotten_in_bounded_batches(client: Any, queues: SlotQueues) -> None:
    client.zadd(f"{LEDGER}:done", {f"{number}/0": number for number in range(1500)})
    assert [queues.trim_ledger("default", before=1200.0) for _ in range(3)] == [1000, 200, 0]
    assert client.zrange(f"{LEDGER}:done", 0, 0) == [b"1200/0"]
