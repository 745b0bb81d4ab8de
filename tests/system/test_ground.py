"""The servers are full, demoted or refuse writes; workers keep what they have and go on when the ground is sound again."""

from __future__ import annotations

import signal
from collections.abc import Callable

from harness.keyed_fleet import KeyedFleet

from celery_sticky.testing.history import Kind
from celery_sticky.testing.server import ValkeyServer
from celery_sticky.testing.waiting import wait_until

StartValkey = Callable[..., ValkeyServer]


def trusted(fleet: KeyedFleet) -> bool:
    """Whether every member's heartbeats are still counted: two looks, some beats apart."""
    before = fleet.store.read().beats
    return bool(wait_until(lambda: all(now > before[one] for one, now in fleet.store.read().beats.items()), timeout=20))


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
