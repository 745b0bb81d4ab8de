"""Pinned keys with real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import redis
from harness.keyed_fleet import node
from harness.placed_fleet import SLOTS, PlacedFleet

from celery_sticky import Sticky, slot_for
from celery_sticky.errors import InvalidSettings, NotAMember, NotPinned, PinnedElsewhere
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

Placed = Callable[..., PlacedFleet]


def test_a_pinned_key_runs_where_it_is_pinned_and_nowhere_else(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b")
    for i in range(8):
        fleet.on("ab"[i % 2], "pin", f"k{i}", "pinned")
    for _ in range(3):
        for i in range(8):
            fleet.call(f"k{i}")
    fleet.wait_finished()
    for i in range(8):
        assert fleet.ran(f"k{i}") == ["ab"[i % 2]] * 3
    assert fleet.judge().ok, fleet.judge().describe()


def test_unpinned_again_a_key_goes_to_the_owner_of_its_slot(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b")
    view = fleet.view()
    keys = [f"k{i}" for i in range(12)]
    owners = {key: str(view.owner[slot_for(key, SLOTS)]).partition("@")[0] for key in keys}
    assert set(owners.values()) == {"a", "b"}
    other = {"a": "b", "b": "a"}
    for key in keys:
        fleet.on(other[owners[key]], "pin", key, "pinned")
        fleet.call(key)
    fleet.wait_finished()
    assert all(fleet.ran(key) == [other[owners[key]]] for key in keys)
    for key in keys:
        assert fleet.on(other[owners[key]], "unpin", key, "pinned")
        assert not fleet.on(other[owners[key]], "unpin", key, "pinned")
        fleet.call(key)  # perhaps still to the worker that had pinned it, which passes it on
    fleet.wait_finished()
    assert all(fleet.ran(key) == [other[owners[key]], owners[key]] for key in keys)
    assert fleet.judge().ok and not fleet.steps_back()


def test_pinned_while_it_runs_elsewhere_a_key_waits_for_its_running_task(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b")
    fleet.on("a", "pin", "k", "pinned")
    fleet.call("k", 3.0)
    for _ in range(3):
        fleet.call("k")
    wait_until(lambda: fleet.ran("k") == ["a"], 30, "it runs")
    fleet.on("b", "pin", "k", "pinned", True)
    fleet.call("k")
    fleet.wait_finished()
    assert fleet.ran("k") == ["a", "b", "b", "b", "b"]
    judged = fleet.judge()
    assert not judged.overlaps and not judged.duplicates, judged.describe()


def test_a_key_pinned_elsewhere_is_refused_and_can_be_taken(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b")
    fleet.on("a", "pin", "k", "pinned")
    fleet.on("a", "pin", "k", "pinned")
    with pytest.raises(PinnedElsewhere, match=f"pinned by worker '{node('a')}'"):
        fleet.on("b", "pin", "k", "pinned")
    fleet.on("b", "pin", "k", "pinned", True)
    assert not fleet.on("a", "unpin", "k", "pinned")
    fleet.call("k")
    fleet.wait_finished()
    assert fleet.ran("k") == ["b"]


def test_when_the_worker_that_pinned_it_dies_a_key_is_free(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b")
    for i in range(6):
        fleet.on("b", "pin", f"k{i}", "pinned")
        fleet.call(f"k{i}", 0.3)
        fleet.call(f"k{i}")
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.wait_members("a")
    fleet.wait_finished()
    wait_until(lambda: fleet.empty("b"), 30, "its queue is emptied")
    for i in range(6):
        fleet.on("a", "pin", f"k{i}", "pinned")
        fleet.call(f"k{i}")
    fleet.wait_finished()
    judged = fleet.judge()
    assert not judged.overlaps and not judged.lost, judged.describe()
    assert all(fleet.ran(f"k{i}")[-1] == "a" for i in range(6)) and not fleet.dead()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_frozen_past_its_lease_has_pinned_nothing_and_is_told_so(placed: Placed, pool: str) -> None:
    fleet = placed("pinned")
    a, b = fleet.up("a", "b", pool=pool)
    for key in ("k", "taken", "let go"):
        fleet.on("b", "pin", key, "pinned")
    fleet.on("b", "unpin", "let go", "pinned")
    b.freeze()
    fleet.wait_members("a")
    fleet.call("k")
    fleet.wait_finished()
    assert fleet.ran("k") == ["a"]
    fleet.on("a", "pin", "taken", "pinned")
    b.thaw()
    fleet.wait_members("a", "b")
    b.wait_for_log(r"lost in pinned: \['k', 'taken'\]", 30)
    wait_until(lambda: Sticky.of(fleet.app).worker_for("k", "pinned") == node("b"), 30, "it was pinned again")
    assert Sticky.of(fleet.app).worker_for("taken", "pinned") == node("a")
    fleet.call("k")
    fleet.wait_finished()
    assert fleet.ran("k") == ["a", "b"], "pinned again it comes back"
    fleet.on("a", "pin", "k", "pinned", True)
    b.wait_for_log(r"lost in pinned: \['k'\]", 30)
    assert "lost in" not in a.log


def test_a_keyspace_may_refuse_keys_that_nobody_has_pinned(placed: Placed) -> None:
    fleet = placed("strict")
    fleet.up("a", "b")
    with pytest.raises(NotPinned, match="key 'k' of keyspace 'strict' is pinned by no live worker"):
        fleet.call("k")
    fleet.on("b", "pin", "k", "strict")
    wait_until(lambda: sends(fleet, "k"), 30, "the sender has heard of it")
    waiting = [fleet.call("k", 1.0), fleet.call("k")]
    wait_until(lambda: fleet.ran("k"), 30, "it runs")
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.wait_members("a")
    wait_until(lambda: not sends(fleet, "k"), 30, "the sender has heard of it")
    wait_until(lambda: len(fleet.dead()) >= 2, 30, "what waited for it is buried")
    assert all("pinned by no live worker" in one.info for one in fleet.dead())
    for result in waiting:
        with pytest.raises(NotPinned, match="key 'k' of keyspace 'strict' is pinned by no live worker"):
            result.get(timeout=30)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_who_waits_for_what_is_refused_is_told_also_by_a_worker_that_stops(placed: Placed, pool: str) -> None:
    fleet = placed("strict")
    (a,) = fleet.up("a", pool=pool)
    fleet.on("a", "pin", "k", "strict")
    running = fleet.call("k", 3.0)
    waiting = fleet.call("k")
    silent = fleet.call("k", ignore_result=True)
    chain = fleet.app.tasks["strict.record"].s("k", 100) | fleet.app.tasks["strict.record"].s("k", 101)
    last = chain.apply_async()
    wait_until(lambda: fleet.ran("k"), 30, "it runs")
    a.kill(signal.SIGTERM)
    assert running.get(timeout=30) == 0
    for result in (waiting, last.parent, last):
        with pytest.raises(NotPinned, match="pinned by no live worker"):
            result.get(timeout=30)
    assert a.wait() == 0
    assert silent.state == "PENDING" and len(fleet.dead()) == 3
    assert fleet.ran("k") == ["a"]


def sends(fleet: PlacedFleet, key: str) -> bool:
    """Whether a sender finds a worker for the key."""
    try:
        return bool(Sticky.of(fleet.app).worker_for(key, fleet.keyspace))
    except NotPinned:
        return False


def test_a_pin_goes_before_the_function(placed: Placed) -> None:
    fleet = placed("both")
    fleet.up("a", "b")
    keys = [f"k{i}" for i in range(6)]
    for key in keys:
        fleet.call(key)
    fleet.wait_finished()
    assert {fleet.ran(key)[0] for key in keys} == {"a", "b"}
    for key in keys:
        fleet.on("a", "pin", key, "both")
    wait_until(
        lambda: all(Sticky.of(fleet.app).worker_for(key, "both") == node("a") for key in keys), 30, "it is known"
    )
    for key in keys:
        fleet.call(key)
    fleet.wait_finished()
    assert all(fleet.ran(key)[1] == "a" for key in keys) and fleet.judge().ok


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_pinned_from_the_main_process(placed: Placed, pool: str) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b", pool=pool)
    assert fleet.on("a", "pin", "k0", "pinned") == fleet.workers["a"].pid
    fleet.on("b", "pin", "k1", "pinned")
    for _ in range(3):
        fleet.call("k0")
        fleet.call("k1")
    fleet.wait_finished()
    assert (fleet.ran("k0"), fleet.ran("k1")) == (["a"] * 3, ["b"] * 3)
    assert fleet.judge().ok, fleet.judge().describe()


def test_pinned_from_a_job_the_key_comes_to_the_worker_of_the_job(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", "b", keyspaces="pinned,default")
    sticky = Sticky.of(fleet.app)
    keys = [f"k{i}" for i in range(6)]
    for key in keys:
        sticky.jobs.dispatch("front", key)
    homes = {job.key: job.worker for job in sticky.jobs.list("front")}
    assert set(homes.values()) == {node("a"), node("b")}
    for key in keys:
        fleet.call(key)
    fleet.wait_finished()
    assert {key: node(fleet.ran(key)[0]) for key in keys} == homes


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_end_of_an_old_connection_leaves_the_pin_of_the_new_one(placed: Placed, pool: str) -> None:
    fleet = placed("strict")
    fleet.up("a", "b", pool=pool, concurrency=1)
    fleet.on("a", "pin", "k", "strict")
    fleet.on("a", "pin", "k", "strict")
    assert not fleet.on("a", "release", 0), "the client has reconnected to the same worker"
    fleet.call("k").get(timeout=30)
    assert fleet.on("a", "owns", "k", "strict")
    fleet.on("b", "pin", "k", "strict", True)
    wait_until(lambda: not fleet.on("a", "owns", "k", "strict"), 30, "each process of a can find out")
    assert not fleet.on("a", "release", 1), "and now to another one"
    assert fleet.call("k").get(timeout=30) == 1
    assert fleet.ran("k") == ["a", "b"]
    assert fleet.on("b", "release", 0) and not fleet.on("b", "release", 0)
    wait_until(lambda: not sends(fleet, "k"), 30, "nobody has it pinned")
    assert not fleet.on("b", "owns", "k", "strict")


def test_a_pin_is_the_workers_and_does_not_end_with_the_process_that_set_it(placed: Placed) -> None:
    """Guards: with prefork any child runs the key, whichever has pinned it."""
    fleet = placed("strict")
    a, _ = fleet.up("a", "b", concurrency=1)
    child = fleet.on("a", "pin", "k", "strict")
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: child not in a.children, 30, "the process that has pinned the key is gone")
    assert fleet.call("k").get(timeout=30) == 0
    (start,) = fleet.starts()
    assert start.worker == node("a") and start.pid != child


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_store_that_has_forgotten_pins_has_them_set_again(
    placed: Placed, pool: str, valkey: Callable[..., ValkeyServer]
) -> None:
    server = valkey()
    fleet = placed("strict", broker=server.url)
    (a,) = fleet.up("a", pool=pool)
    fleet.on("a", "pin", "held", "strict")
    assert sends(fleet, "held")
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    a.wait_for_log("forgotten in strict", 60)
    wait_until(lambda: sends(fleet, "held"), 30, "it is pinned again")
    assert fleet.call("held").get(timeout=30) == 0
    assert fleet.ran("held") == ["a"] and a.log.count("forgotten in strict") == 1


def test_of_messages_for_clients_that_are_gone_only_the_newest_are_kept(placed: Placed) -> None:
    fleet = placed("capped")
    fleet.up("a")
    fleet.on("a", "pin", "k", "capped")
    running = fleet.call("k", 3.0)
    waiting = [fleet.call("k") for _ in range(5)]
    wait_until(lambda: fleet.ran("k"), 30, "it runs")
    fleet.on("a", "unpin", "k", "capped")
    running.get(timeout=30)
    for result in waiting:
        with pytest.raises(NotPinned):
            result.get(timeout=30)
    fleet.up("b")  # a worker looks at its start, and every 30 s
    wait_until(lambda: len(fleet.dead()) == 2, 30, "the oldest are dropped")
    fleet.workers["b"].wait_for_log("dropped its 3 oldest buried messages: at most 2 are kept for 86400 s", 30)


def test_only_a_worker_can_pin(placed: Placed) -> None:
    fleet = placed("pinned")
    with pytest.raises(NotAMember, match="this process belongs to no worker"):
        Sticky.of(fleet.app).pin("k", "pinned")
    with pytest.raises(InvalidSettings, match="does not allow pins"):
        Sticky.of(fleet.app).pin("k")
    assert not Sticky.of(fleet.app).unpin("k", "pinned")
