"""The servers are full, demoted or refuse writes: workers keep what they can, and go on when that is over."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from harness.keyed_fleet import SLOTS, KeyedFleet

from celery_sticky.testing.history import Kind
from celery_sticky.testing.proxy import Proxy
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

StartValkey = Callable[..., ValkeyServer]


def trusted(fleet: KeyedFleet) -> bool:
    """Whether every member's heartbeats are still counted: two looks, some heartbeats apart."""
    before = fleet.store.read().heartbeats
    return bool(
        wait_until(lambda: all(now > before[one] for one, now in fleet.store.read().heartbeats.items()), timeout=20)
    )


def test_workers_on_a_full_server_keep_their_leases_and_take_over_from_a_dead_one(
    crew: Callable[..., KeyedFleet], valkey: StartValkey
) -> None:
    server = valkey(config={"maxmemory-policy": "noeviction"})
    fleet = crew(broker=server.url)
    *_, third = fleet.workers_up("a", "b", "c")
    view = fleet.wait_members("a", "b", "c")
    long_key = fleet.keys_of(view, "a")[0]
    fleet.publish(long_key, 8.0)
    start = fleet.wait_started(long_key, 0)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        third.kill(signal.SIGKILL)
        after = fleet.wait_members("a", "b")
        assert after.generation == view.generation
        assert {old: after.members[old].incarnation for old in after.members} == {
            old: view.members[old].incarnation for old in after.members
        }, "nobody had to join again"
        assert trusted(fleet)
        wait_until(lambda: any(e.kind is Kind.END and e.run == start.run for e in fleet.events()), timeout=30)
        client.config_set("maxmemory", 0)
    for i in range(24):
        fleet.publish(f"k{i}", 0.002)
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def test_workers_follow_a_name_that_moves_though_the_old_primary_keeps_their_connections(
    crew: Callable[..., KeyedFleet], valkey: StartValkey, proxy: Callable[[str], Proxy]
) -> None:
    """A managed failover: the demoted server answers READONLY on connections that nobody closes."""
    old, new = valkey(), valkey()
    name = proxy(old.url)
    fleet = crew(broker=name.url)
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    with old.client() as old_client, new.client() as new_client:
        new_client.replicaof("127.0.0.1", old.port)
        wait_until(lambda: new_client.info("replication")["master_link_status"] == "up", timeout=20)
        for i in range(24):
            fleet.publish(f"k{i}", 0.002)
        fleet.wait_finished()
        wait_until(lambda: _offset(old_client) == _offset(new_client), timeout=20)
        new_client.replicaof("NO", "ONE")
        name.lead(new.url)
        old_client.replicaof("127.0.0.1", new.port)
        after = fleet.wait_view(lambda view: view.generation > before.generation and len(view.members) == 2, 60)
        assert after.store_id == new_client.info("server")["run_id"]
        with fleet.app.connection_for_write() as connection:  # Kombu keeps its own, to a server that refuses
            producer = fleet.app.amqp.Producer(connection, auto_declare=False)
            for i in range(24):
                fleet.publish(f"k{i}", 0.002, producer=producer)
        fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def _offset(client: Any) -> int:
    found = client.info("replication")
    return int(found["master_repl_offset"])


def test_a_worker_that_never_reached_its_broker_holds_no_slots_for_long(
    crew: Callable[..., KeyedFleet], valkey: StartValkey, proxy: Callable[[str], Proxy]
) -> None:
    broker, store = valkey(), valkey()
    fleet = crew(broker=broker.url, sticky_store=store.url, sticky_broker_grace=1.5)
    fleet.workers_up("a")
    way = proxy(broker.url)
    way.cut()
    late = fleet.worker("b", ready=False, env=fleet.environ_with(broker=way.url))
    late.wait_for_log("left because it could not run anything")
    fleet.wait_members("a")
    way.heal()
    late.wait_ready()
    fleet.wait_members("a", "b")
    for i in range(24):
        fleet.publish(f"k{i}", 0.002)
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def test_a_record_of_another_type_stops_its_keyspace_alone_and_is_named(
    crew: Callable[..., KeyedFleet], valkey: StartValkey
) -> None:
    server = valkey()
    fleet = crew(broker=server.url, sticky_keyspaces={"default": SLOTS, "other": SLOTS})
    (worker,) = fleet.workers_up("a")
    with server.client() as client:
        client.set("sticky:revoked", "oops")
        client.rename("sticky:other:beats", "aside")
        client.set("sticky:other:beats", "oops")
        worker.wait_for_log("sticky:other:beats is a string, not a hash")
        assert trusted(fleet), "the other keyspace goes on"
        for i in range(24):
            fleet.publish(f"k{i}", 0.002)
        fleet.wait_finished()
        client.rename("aside", "sticky:other:beats")
        worker.wait_for_log("keyspace other: the store answers again")
        fleet.worker("b")
        fleet.wait_members("a", "b")
    assert fleet.workers["b"].log.count("joining without knowing which tasks were revoked") >= 1
    assert worker.log.count("is a string, not a hash") < 10 and "Traceback" not in worker.log
    judged = fleet.judge()
    assert judged.ok, judged.describe()
