"""What only a server can do to a queue driver: refuse, forget, freeze, die, run out of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue

from celery_sticky.drivers import open_queues
from celery_sticky.errors import BrokerUnavailable, Fenced, SlotBroken, StickyError
from celery_sticky.keys import queue_name
from celery_sticky.queues import Disposition, Opening, Outcome, Want
from celery_sticky.queues.redis import Layout, RedisQueues, driver, scripts
from celery_sticky.redis_clients import client_from_connection
from celery_sticky.redis_wire import Wire
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    HERE,
    LONG,
    NEXT,
    NOW,
    SOON,
    ack,
    bodies,
    defer,
    mark,
    open_slot,
    settle,
    take,
    take_all,
    tenure,
)
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

Start = Callable[..., ValkeyServer]
# Servers push changes of every database: other tests on the same server must not use the same names.
PREFIX = f"sticky-{os.getpid()}"
QUEUE = f"{PREFIX}.default.7"


@pytest.fixture
def connect() -> Iterator[Callable[..., RedisQueues]]:
    made: list[RedisQueues] = []

    def connect(url: str, socket_timeout: float = 5.0, **options: Any) -> RedisQueues:
        queues = open_queues(Connection(url, transport_options=options), prefix=PREFIX, socket_timeout=socket_timeout)
        assert isinstance(queues, RedisQueues)
        made.append(queues)
        return queues

    yield connect
    for queues in made:
        queues.close()


Connect = Callable[..., RedisQueues]


def test_many_slots_open_in_one_round_trip(valkey: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server = valkey()
    queues, trips = connect(server.url), list[int]()
    first, *others = (tenure(slot=slot) for slot in range(64))
    open_slot(queues, first)
    with server.client() as client:
        client.lpush(f"{PREFIX}.default.0", *range(1000))
        take(queues, first, limit=1000)
        client.set(f"{PREFIX}.default.5:fence", "not a hash")
        call = Wire.call

        def counted(self: Wire, *requests: bytes) -> list[object]:
            trips.append(len(requests))
            return call(self, *requests)

        monkeypatch.setattr(Wire, "call", counted)
        assert all(not isinstance(answer, Fenced) for answer in queues.open([Opening(one) for one in others]))
        assert trips == [63]
        client.script_flush()
        again = [tenure(slot=slot, epoch=6) for slot in range(64)]
        answers = queues.open([Opening(one) for one in again])
        assert trips[1:3] == [64, 64], "the server had lost the script"
        assert trips[3:] == [1] * len(trips[3:]) and len(trips) > 4, "the slot with 1,000 in flight takes more requests"
        assert [slot for slot, answer in enumerate(answers) if isinstance(answer, SlotBroken)] == [5]
        assert len(take_all(queues, again[0]).deliveries) == 1000


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_it_reads_what_stock_kombu_publishes(redis_url: str, connect: Connect, prefix: str) -> None:
    options = {"global_keyprefix": prefix} if prefix else {}
    queues = connect(redis_url, **options)
    open_slot(queues, FIRST)
    assert take(queues, FIRST).drained == {HERE}
    name = queue_name("default", 7, PREFIX)
    with Connection(redis_url, transport_options=options) as connection:
        queue = Queue(name, Exchange(name, type="direct"), routing_key=name)
        for priority in range(10):
            Producer(connection).publish(
                [["x"], {"n": priority}, {}], exchange="", routing_key=name, priority=priority, declare=[queue]
            )
            if priority == 0:
                assert queues.idle(LONG) == {HERE}
        deliveries = take(queues, FIRST).deliveries
        channel = connection.channel()
        messages = [channel.message_to_python(json.loads(d.body)) for d in deliveries]
        assert [message.decode()[1]["n"] for message in messages] == list(range(10))
    assert [d.priority for d in deliveries] == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]


NOTED = {"marks": "1", "deferred": "1", "big": "1", "heavy": "1", "light": "1", "former": '["5"]'}


@pytest.mark.parametrize("note", NOTED)
@pytest.mark.parametrize("seen", [False, True], ids=["new", "used"])
def test_a_look_into_an_empty_slot_forgets_no_note_that_still_holds(
    redis_url: str, connect: Connect, note: str, seen: bool
) -> None:
    """A fence without `more` is taken for one without notes: nothing that was deferred would come due there."""
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    if seen:
        client.lpush(QUEUE, "seen")
        settle(queues, ack(take(queues, FIRST).deliveries[0]))
    client.zadd(f"{QUEUE}:deferred", {"0000000000000001:0:later": NOW + 10})
    open_slot(queues, AGAIN)
    client.hset(f"{QUEUE}:fence", mapping={note: NOTED[note], "more": 1})
    for _ in range(3):
        assert take(queues, AGAIN).drained == {HERE}
    assert bodies(take(queues, AGAIN, now=NOW + 11)) == [b"later"]


def test_the_fence_of_an_ordinary_slot_sends_no_fetch_to_look_for_notes(redis_url: str, connect: Connect) -> None:
    """That look is what most slots are spared."""
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    client.lpush(QUEUE, "1")
    (only,) = take(queues, FIRST).deliveries
    assert not client.hexists(f"{QUEUE}:fence", "more")
    settle(queues, defer(only, NOW + 1))
    assert client.hexists(f"{QUEUE}:fence", "more")
    settle(queues, ack(take(queues, FIRST, now=NOW + 2).deliveries[0]))
    take(queues, FIRST, now=NOW + 2)
    take(queues, FIRST, now=NOW + 2)
    assert not client.hexists(f"{QUEUE}:fence", "more"), "it has nothing any more"


def test_a_request_with_acks_only_creates_none_of_the_other_functions(
    redis_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most requests of a busy worker are such; the other functions cost more than the acks."""
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues, text = connect(redis_url), scripts._text
    open_slot(queues, FIRST)
    client.lpush(QUEUE, "1")
    (only,) = take(queues, FIRST).deliveries
    broken = 'error("loaded all of it")'
    monkeypatch.setattr(scripts, "_text", lambda name: broken if name == "messages" else text(name))
    bare = connect(redis_url)
    assert settle(bare, ack(only)).confirmed
    with pytest.raises(StickyError, match="loaded all of it"):
        take(bare, FIRST)


def test_a_server_that_forgot_the_scripts_gets_them_again(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    for count in (1, 2):
        client.script_flush()
        open_slot(queues, tenure(count=count))
        client.script_flush()
        assert take(queues, tenure(count=count)).lost == set()


def test_a_message_between_the_fetch_and_the_look_is_found_at_once(
    redis_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drained slot is read in the same go as it is fetched from; what came in between is not pushed any more."""
    monkeypatch.setattr(driver, "SWEEP_SECONDS", 1000.0)
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    _swept(queues)
    call = Wire.call

    def apart(wire: Wire, *requests: bytes) -> list[object]:
        first = call(wire, requests[0])
        client.lpush(QUEUE, "1")
        return [*first, *(reply for request in requests[1:] for reply in call(wire, request))]

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "call", apart)
        assert take(queues, FIRST).drained == {HERE}
    assert queues.idle(LONG) == {HERE}


def test_a_slot_drained_by_a_script_that_had_to_be_sent_again_wakes(
    redis_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look in the same go was then before the script: it saw no list, and the script disarmed it by making one."""
    monkeypatch.setattr(driver, "SWEEP_SECONDS", 1000.0)
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    _swept(queues)
    client.lpush(QUEUE, "1")
    (delivery,) = take(queues, FIRST).deliveries
    settle(queues, defer(delivery, NOW))
    client.script_flush()
    assert bodies(take(queues, FIRST)) == [b"1"]
    assert queues.idle(0) == set()
    client.lpush(QUEUE, "2")
    assert queues.idle(LONG) == {HERE}


def test_after_a_killed_connection_nothing_is_lost_and_slots_wake_again(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    open_slot(queues, tenure(slot=8))
    client.lpush(QUEUE, "1", "2")
    (first,) = take(queues, FIRST, limit=1).deliveries
    assert take(queues, tenure(slot=8)).drained == {("default", 8)}
    assert queues.idle(0) == set()
    _kill(client, queues)
    with pytest.raises(BrokerUnavailable):
        queues.idle(LONG)
    open_slot(queues, AGAIN)
    assert settle(queues, ack(first)).refused == [ack(first)]
    assert bodies(take(queues, AGAIN)) == [b"1", b"2"]
    # Slot 8 was not opened again: what was known of it is asked again on the new connection, and pushed from there.
    assert queues.idle(0) == set()
    client.lpush(f"{PREFIX}.default.8", "3")
    assert queues.idle(SOON) == {("default", 8)}


def test_a_connection_killed_under_an_idle_ends_it_at_once(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    take(queues, FIRST)
    timer = threading.Timer(0.1, _kill, (client, queues))
    timer.start()
    with pytest.raises(BrokerUnavailable):
        queues.idle(LONG)
    timer.join()


@pytest.mark.parametrize("gone", ["flushdb", "flushall"])
def test_an_emptied_server_wakes_every_drained_slot(valkey: Start, connect: Connect, gone: str) -> None:
    server = valkey()
    queues = connect(server.url)
    tenures = [tenure(slot=slot) for slot in range(3)]
    for one in tenures:
        open_slot(queues, one)
    queues.fetch([Want(one, 1) for one in tenures], [], NOW)
    assert queues.idle(0) == set()
    with server.client() as client:
        getattr(client, gone)()
    assert queues.idle(LONG) == {("default", slot) for slot in range(3)}
    assert take(queues, tenures[0]).lost == {("default", 0)}


def test_a_frozen_server_is_noticed_within_the_timeout_by_every_verb(valkey: Start, connect: Connect) -> None:
    server = valkey()
    with server.client() as client:
        queues = connect(server.url, socket_timeout=0.3)
        open_slot(queues, FIRST)
        client.lpush(QUEUE, "1", "2", "3")
        (first,) = take(queues, FIRST, limit=1).deliveries
        server.freeze()
        for call in (
            lambda: take(queues, FIRST, ack(first), limit=1),
            lambda: open_slot(queues, AGAIN),
            lambda: queues.depths([("default", 7)]),
        ):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                call()
            assert time.monotonic() - began < 3
        server.thaw()
        # The server carries out what it had received, in whatever order: only the newest open counts.
        wait_until(lambda: client.ping())
        last = tenure(count=9)
        open_slot(queues, last)
        assert take(queues, FIRST).lost == {HERE}
        left = bodies(take(queues, last))
        assert left in ([b"1", b"2", b"3"], [b"2", b"3"])


def test_a_server_frozen_under_an_idle_is_noticed(valkey: Start, connect: Connect) -> None:
    server = valkey()
    queues = connect(server.url, socket_timeout=0.3)
    open_slot(queues, FIRST)
    take(queues, FIRST)
    queues.idle(0)
    server.freeze()
    with pytest.raises(BrokerUnavailable):
        queues.idle(LONG)
    server.thaw()


def test_late_requests_of_an_old_connection_change_nothing_after_the_next_open(valkey: Start, connect: Connect) -> None:
    server = valkey()
    with server.client() as client:
        client.lpush(QUEUE, "1", "2")
        old, new = connect(server.url), connect(server.url)
        open_slot(old, FIRST)
        (first,) = take(old, FIRST, limit=1).deliveries
        open_slot(new, AGAIN, [first.tag])
        assert take(old, FIRST, ack(first)).refused == [ack(first)]
        with pytest.raises(Exception, match="fenced"):
            open_slot(old, FIRST)
        assert bodies(take(new, AGAIN, ack(first, AGAIN))) == [b"2"]


def test_a_server_killed_and_started_again_on_its_log_has_lost_nothing(valkey: Start, connect: Connect) -> None:
    server = valkey(appendonly=True)
    queues = connect(server.url, socket_timeout=2.0)
    open_slot(queues, FIRST)
    with server.client() as client:
        client.lpush(QUEUE, *[str(i) for i in range(20)])
    brought = take(queues, FIRST, limit=10).deliveries
    bury = Disposition(Outcome.BURY, FIRST, brought[2].tag)
    answer = settle(queues, ack(brought[0]), defer(brought[1], NOW + 5), bury, mark(brought[3]))
    assert answer.refused == []
    server.kill()
    with pytest.raises(BrokerUnavailable):
        take(queues, FIRST)
    server.restart()
    with pytest.raises(Exception, match="fenced"):
        open_slot(queues, FIRST)
    open_slot(queues, NEXT)
    again = take(queues, NEXT, limit=50, now=NOW + 5)
    assert bodies(again) == [*(b"%d" % i for i in range(3, 20)), b"1"]
    assert again.deliveries[0].attempts == 1
    (dead,) = queues.dead("default")
    whole = queues.dead_message("default", dead.id)
    assert whole and whole.body == b"2"


def test_a_server_without_memory_still_hands_out_and_settles(valkey: Start, connect: Connect) -> None:
    server = valkey(config={"maxmemory-policy": "noeviction"})
    queues = connect(server.url)
    open_slot(queues, FIRST)
    with server.client() as client:
        client.lpush(QUEUE, "1", "2", "3")
        first, second = take(queues, FIRST, limit=2).deliveries
        settle(queues, defer(second, NOW + 5))
        client.config_set("maxmemory", 1)
        open_slot(queues, NEXT)
        brought = take(queues, NEXT, limit=1)
        assert bodies(brought) == [b"1"]
        assert settle(queues, ack(first)).refused == [ack(first)]
        brought = take(queues, NEXT, ack(brought.deliveries[0]), now=NOW + 5)
        assert bodies(brought) == [b"3", b"2"]
        assert settle(queues, *[ack(d) for d in brought.deliveries]).refused == []
    assert queues.depths([("default", 7)])["default", 7].in_flight == 0


def test_a_refusal_is_a_broker_that_is_not_available(valkey: Start, connect: Connect) -> None:
    server = valkey()
    queues = connect(server.url)
    with server.client() as client:
        open_slot(queues, FIRST)
        connections = client.info("stats")["total_connections_received"]
        client.replicaof("127.0.0.1", "1")
        with pytest.raises(BrokerUnavailable, match="READONLY"):
            open_slot(queues, AGAIN)
        client.replicaof("no", "one")
        open_slot(queues, AGAIN)
        # A server that became a replica keeps its connections: only a new one asks Sentinel who is in charge.
        assert client.info("stats")["total_connections_received"] == connections + 1


def test_each_message_wakes_the_driver_by_a_push(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    for _ in range(5):  # a look every two seconds would find some of them, not all
        take(queues, FIRST)
        timer = threading.Timer(0.05, client.lpush, (QUEUE, "1"))
        timer.start()
        assert queues.idle(SOON) == {HERE}
        timer.join()


def test_many_thousand_messages_move_at_once(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    expected = [b"%d" % number for number in range(9000)]
    client.lpush(QUEUE, *expected)
    take_all(queues, FIRST)
    open_slot(queues, AGAIN)
    brought = take_all(queues, AGAIN)
    settle(queues, *[defer(d, NOW + 1) for d in brought.deliveries])
    assert bodies(take_all(queues, AGAIN, now=NOW + 1)) == expected


def test_an_idle_driver_sends_next_to_nothing(valkey: Start, connect: Connect) -> None:
    server = valkey()
    client = client_from_connection(Connection(server.url), socket_timeout=5.0)
    queues = connect(server.url)
    tenures = [tenure(slot=slot) for slot in range(128)]
    for one in tenures:
        open_slot(queues, one)
    queues.fetch([Want(one, 1) for one in tenures], [], NOW)
    queues.idle(0)
    assert queues.pushed
    before = _commands(client)
    assert queues.idle(5.0) == set()
    assert _commands(client) - before <= 4  # a look every two seconds
    before = _commands(client)
    for _ in range(100):
        queues.idle(0)
    assert _commands(client) - before <= 1


def test_only_fences_stay_behind(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    for number, owner in enumerate((FIRST, NEXT)):
        open_slot(queues, owner)
        client.lpush(QUEUE, *[f"{number} {i}" for i in range(300)])
        suspects = take(queues, owner, limit=50).deliveries
        settle(queues, *[mark(d) for d in suspects], *[defer(d, NOW) for d in suspects[:5]])
    last = tenure(epoch=7, incarnation="cat")
    open_slot(queues, last)
    brought = take_all(queues, last).deliveries
    assert len(brought) == 600
    settle(queues, *[mark(d) for d in brought[::2]])
    settle(queues, *[ack(d) for d in brought])
    assert {key for key in client.scan_iter() if QUEUE.encode() in key} == {f"{QUEUE}:fence".encode()}


def test_marks_of_messages_that_were_purged_do_not_stay(redis_url: str, connect: Connect) -> None:
    client = client_from_connection(Connection(redis_url), socket_timeout=5.0)
    queues = connect(redis_url)
    open_slot(queues, FIRST)
    client.lpush(QUEUE, "1", "2")
    take(queues, FIRST)
    open_slot(queues, NEXT)
    assert client.hlen(QUEUE + ":marks") == 2
    client.delete(*Layout(PREFIX).lists("default", 7))
    take(queues, NEXT)
    assert client.hlen(QUEUE + ":marks") == 0


LOOP = Path(__file__).with_name("queue_loop.py")


@pytest.mark.parametrize("patch", ["none", "gevent.monkey", "eventlet"])
@pytest.mark.parametrize("pushes", [True, False])
def test_the_driver_waits_without_blocking_under_every_kind_of_thread(valkey: Start, patch: str, pushes: bool) -> None:
    server = valkey()
    if not pushes:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-client")
    command = [sys.executable, "-W", "ignore", str(LOOP), patch, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _swept(queues: RedisQueues) -> None:
    """Open the slot and have all lists read: from here on, for `SWEEP_SECONDS`, only what is heard counts."""
    open_slot(queues, FIRST)
    take(queues, FIRST)
    assert queues.idle(0) == set()


def _kill(client: Any, queues: RedisQueues) -> None:
    """Kill the connections that take pushes: the driver's, and no other in this database."""
    assert queues.pushed
    number = client.client_info()["db"]
    for one in client.client_list():
        if "t" in one["flags"] and one["db"] == str(number):
            client.client_kill_filter(_id=one["id"])


def _commands(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_exists", {}).get("calls", 0))
