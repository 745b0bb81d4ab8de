"""Broker and store are restarted, wiped, frozen and cut off; workers come through by themselves.

Two fleets: one server for both roles, or a server for each with a proxy in front of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness.fleet import Fleet
from harness.keyed_fleet import MARGIN, SLOTS, TIMEOUT, TTL, KeyedFleet, node

from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.proxy import Proxy
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

KEYS = 24
GRACE = 1.5


def says_all_is_well(fleet: Fleet) -> None:
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def runs_of(fleet: Fleet, key: str, n: int) -> list[Event]:
    return [e for e in fleet.events() if e.kind is Kind.START and (e.key, e.n) == (key, n)]


def publish_everywhere(fleet: KeyedFleet, rounds: int = 1) -> None:
    for _ in range(rounds):
        for i in range(KEYS):
            fleet.publish(f"k{i}", 0.002)


# -- one server for both roles -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """Workers `a` and `b` that share the slots, as `before` says, and their one server."""

    server: ValkeyServer
    fleet: KeyedFleet
    before: View


@pytest.fixture
def pair(crew: Callable[..., KeyedFleet], valkey: Callable[..., ValkeyServer], request: pytest.FixtureRequest) -> Pair:
    server = valkey(**getattr(request, "param", {}))
    fleet = crew(broker=server.url)
    fleet.workers_up("a", "b")
    return Pair(server, fleet, fleet.wait_members("a", "b"))


@pytest.mark.parametrize("pair", [{"appendonly": True}], indirect=True)
def test_a_server_that_restarts_with_its_data_stops_nobody_for_long(pair: Pair) -> None:
    """Guards: lost or rolled-back store (a restart may have lost writes: a new run id is not trusted)."""
    server, fleet, before = pair.server, pair.fleet, pair.before
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, 1.0)
    publish_everywhere(fleet)
    fleet.wait_started(key, 0)
    server.restart()
    publish_everywhere(fleet)
    says_all_is_well(fleet)
    after = fleet.wait_members("a", "b")
    assert after.generation > before.generation and after.store_id != before.store_id
    assert all(new > old for new, old in zip(after.epoch, before.epoch, strict=True))
    assert len(runs_of(fleet, key, 0)) == 1, "a task that runs is not started a second time"


def test_a_server_that_restarts_empty_is_populated_again(pair: Pair) -> None:
    server, fleet, before = pair.server, pair.fleet, pair.before
    publish_everywhere(fleet)
    says_all_is_well(fleet)
    server.restart()
    after = fleet.wait_members("a", "b")
    assert min(after.epoch) > max(before.epoch), "no token that a zombie may hold comes again"
    publish_everywhere(fleet)
    says_all_is_well(fleet)


def test_a_wiped_store_stops_running_tasks_only_at_the_end_of_trust(pair: Pair) -> None:
    """Guards: lost store (nobody renews; after `ttl + margin` a fresh document, with epochs above any seen)."""
    server, fleet, before = pair.server, pair.fleet, pair.before
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, 60.0)
    fleet.wait_started(key, 0)
    wiped = time.monotonic_ns()
    with server.client() as client:
        client.flushall()
    fleet.workers["a"].wait_for_log("the lease has ended|lost|exited")
    ended = time.monotonic_ns()
    assert (ended - wiped) / SECOND < TTL - MARGIN + 2
    after = fleet.wait_members("a", "b")
    written = next(at for at, view in fleet.observer.views if view.generation > before.generation)
    assert (written - wiped) / SECOND >= TIMEOUT - 0.1, "a worker that cannot see this may still trust its lease"
    assert min(after.epoch) > max(before.epoch)
    publish_everywhere(fleet)
    others = [f"k{i}" for i in range(KEYS)]
    wait_until(lambda: not [e for e in fleet.judge().lost if e.key in others], 30, "consuming goes on")
    judged = fleet.judge()
    assert not (judged.overlaps or judged.stale or judged.shared), judged.describe()


def test_connections_that_are_killed_are_made_again_and_nothing_runs_twice(pair: Pair) -> None:
    """Guards: open again with the next count after a lost connection; a running key stays locked meanwhile."""
    server, fleet, before = pair.server, pair.fleet, pair.before
    for i in range(KEYS):
        fleet.publish(f"k{i}", 0.3)
        fleet.publish(f"k{i}", 0.01)
    wait_until(lambda: fleet.ended() > 0, message="some have run")
    for _ in range(3):
        ended = fleet.ended()
        with server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        fleet.wait_ended(min(ended + 1, 2 * KEYS), timeout=20)
    says_all_is_well(fleet)
    again = fleet.judge().duplicates
    assert not again, f"run twice although nobody died: {again}"
    after = fleet.view()
    assert after is not None and after.epoch == before.epoch, "no slot has moved"


def test_a_server_frozen_for_a_moment_costs_nobody_the_lease(pair: Pair) -> None:
    server, fleet, before = pair.server, pair.fleet, pair.before
    publish_everywhere(fleet, 3)
    server.freeze()
    time.sleep(1.0)  # the fault itself
    server.thaw()
    publish_everywhere(fleet)
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates
    after = fleet.wait_members("a", "b")
    assert after.epoch == before.epoch, "no slot has moved"


def test_a_server_frozen_longer_than_a_lease_ends_tasks_and_evicts_nobody(pair: Pair) -> None:
    """Guards: Trust (tasks end without a renewal), stopwatches start again after a gap in one's own reads."""
    server, fleet, before = pair.server, pair.fleet, pair.before
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, 60.0)
    start = fleet.wait_started(key, 0)
    frozen = time.monotonic_ns()
    server.freeze()
    wait_until(lambda: start.pid not in fleet.workers["a"].processes, TTL + 3, "the task is ended")
    ended = time.monotonic_ns()
    time.sleep(max(0.0, TIMEOUT + 1 - (ended - frozen) / SECOND))  # the fault itself
    server.thaw()
    after = fleet.wait_members("a", "b")
    assert (ended - frozen) / SECOND < TTL - MARGIN + 1.5
    assert set(after.members) == set(before.members)
    assert {m.incarnation for m in after.members.values()} == {m.incarnation for m in before.members.values()}
    publish_everywhere(fleet)
    wait_until(lambda: len(runs_of(fleet, key, 0)) == 2, 20, "the task that was ended runs again")
    judged = fleet.judge()
    assert not (judged.overlaps or judged.stale or judged.shared), judged.describe()


# -- a server for each role --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Halves:
    """A fleet whose worker `a` reaches broker and store through proxies of its own; `b` does so directly."""

    fleet: KeyedFleet
    broker: Proxy
    store: Proxy
    before: View


@pytest.fixture
def halves(
    crew: Callable[..., KeyedFleet],
    valkey: Callable[..., ValkeyServer],
    proxy: Callable[[str], Proxy],
    request: pytest.FixtureRequest,
) -> Halves:
    pool = getattr(request, "param", "prefork")
    broker_server, store_server = valkey(), valkey()
    broker, store = proxy(broker_server.url), proxy(store_server.url)
    fleet = crew(
        broker=broker_server.url, sticky_store=store_server.url, sticky_broker_grace=GRACE, sticky_max_waiting=16
    )
    fleet.worker("a", ready=False, pool=pool, env=fleet.environ_with(broker=broker.url, sticky_store=store.url))
    fleet.worker("b", ready=False)
    return Halves(fleet, broker, store, fleet.wait_members("a", "b"))


@pytest.mark.parametrize("fault", ["silence", "cut"])
def test_a_worker_cut_off_from_the_store_ends_its_tasks_before_others_start_them(halves: Halves, fault: str) -> None:
    """Guards: Trust (`ttl - margin` after the last beat it sent), Gone (it comes back as another incarnation)."""
    fleet, before = halves.fleet, halves.before
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, 5.0)
    fleet.publish(key, 0.0)
    first = fleet.wait_started(key, 0)
    getattr(halves.store, fault)()
    wait_until(lambda: first.pid not in fleet.workers["a"].processes, TTL + 2, "the task is ended")
    ended = time.monotonic_ns()
    fleet.wait_members("b")
    wait_until(lambda: len(runs_of(fleet, key, 0)) == 2, 20, "the next owner runs it")
    second = runs_of(fleet, key, 0)[-1]
    assert second.worker == node("b") and second.at > ended
    halves.store.heal()
    after = fleet.wait_members("a", "b")
    assert after.members[node("a")].incarnation != before.members[node("a")].incarnation
    says_all_is_well(fleet)


@pytest.mark.parametrize("halves", ["threads"], indirect=True)  # prefork: see the test below
def test_a_worker_cut_off_from_the_broker_finishes_its_task_leaves_and_comes_back(halves: Halves) -> None:
    """Guards: a key's next task starts after the broker has confirmed the previous disposition.

    And: a disposition that could not be said is kept, but no slot is held for ever because of it.
    """
    fleet, before = halves.fleet, halves.before
    mine = fleet.keys_of(before, "a", count=3)
    fleet.publish(mine[0], 1.0)
    fleet.publish(mine[0], 0.0)
    fleet.wait_started(mine[0], 0)
    since = time.monotonic()
    halves.broker.cut()
    for key in mine:
        fleet.publish(key, 0.0)
    fleet.wait_members("b")
    assert time.monotonic() - since >= GRACE - 0.2, "it waited out sticky_broker_grace"
    wait_until(lambda: not fleet.judge().lost, 20, "b runs what waited")
    halves.broker.heal()
    fleet.wait_members("a", "b")
    fleet.publish(mine[0], 0.0)
    says_all_is_well(fleet)
    assert Counter(e.worker for e in runs_of(fleet, mine[0], 0)) == {node("a"): 1, node("b"): 1}
    assert [e.worker for e in runs_of(fleet, mine[0], 1)] == [node("b")], "it did not start while #0 was unconfirmed"


@pytest.mark.parametrize("fault", ["silence", "cut"])
def test_a_pool_of_processes_without_its_broker_gives_away_what_it_does_not_run(halves: Halves, fault: str) -> None:
    """Celery's loop waits for the broker, and so does not learn that a task of its pool has ended: that slot waits."""
    fleet, before = halves.fleet, halves.before
    busy, *idle = fleet.keys_of(before, "a", count=3)
    fleet.publish(busy, 1.0)
    fleet.wait_started(busy, 0)
    getattr(halves.broker, fault)()
    for key in (busy, *idle):
        fleet.publish(key, 0.0)
    fleet.wait_view(lambda view: view.owned_by(node("a")) <= {fleet.slot_of(busy)}, 20, "a gives its slots away")
    wait_until(lambda: not [e for e in fleet.judge().lost if e.key in idle], 20, "b runs what waited")
    halves.broker.heal()
    fleet.wait_members("a", "b", timeout=60)
    says_all_is_well(fleet)


def test_a_lost_broker_connection_that_comes_back_within_the_grace_moves_nothing(halves: Halves) -> None:
    """Guards: open again with the next count; a running key stays locked across it; what was fetched goes back."""
    fleet, before = halves.fleet, halves.before
    mine = fleet.keys_of(before, "a", count=6)
    for key in mine:
        for _ in range(4):
            fleet.publish(key, 0.1)
    fleet.wait_started(mine[0], 0)
    for _ in range(4):
        halves.broker.reset()
        time.sleep(0.15)  # so that the next reset hits a connection that works again
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates
    after = fleet.view()
    assert after is not None and after.epoch == before.epoch


def test_a_request_that_arrives_after_its_connection_was_given_up_is_refused(halves: Halves) -> None:
    """Guards: open again with the next count. Else a late fetch takes messages that nobody then has."""
    fleet, before = halves.fleet, halves.before
    mine = fleet.keys_of(before, "a", count=6)
    for key in mine:
        for _ in range(60):
            fleet.publish(key, 0.01)
    fleet.wait_started(mine[0], 3)
    halves.broker.strand()
    a = fleet.workers["a"]
    a.wait_for_log("broker is back")
    halves.broker.heal()
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates
    after = fleet.view()
    assert after is not None and after.epoch == before.epoch


def test_fences_of_a_forgotten_document_are_outbid(
    crew: Callable[..., KeyedFleet], valkey: Callable[..., ValkeyServer]
) -> None:
    """Guards: the refusal tells the fence, the owner swaps its epoch above it and opens again."""
    broker, store = valkey(), valkey()
    fleet = crew(broker=broker.url, sticky_store=store.url)
    fleet.workers_up("a")
    for _ in range(3):  # each time under higher epochs
        fleet.workers["a"].kill_all()
        fleet.workers["a"].start().wait_ready()
        fleet.wait_members("a")
    fleet.workers["a"].stop()
    with broker.client() as client:
        fences = [int(client.hget(f"sticky.default.{slot}:fence", "epoch")) for slot in range(SLOTS)]
    with store.client() as client:
        client.flushall()
    fleet.init()
    fresh = fleet.view()
    assert fresh is not None and max(fresh.epoch) < min(fences), "the document has forgotten the epochs"
    fleet.workers["a"].start()
    publish_everywhere(fleet)
    says_all_is_well(fleet)
    after = fleet.wait_members("a")
    assert all(epoch > fence for epoch, fence in zip(after.epoch, fences, strict=True))


def test_what_a_silent_network_delivers_late_is_refused(halves: Halves) -> None:
    """Guards: settle and fetch name the tenure, an old one is refused; Gone."""
    fleet, before = halves.fleet, halves.before
    mine = fleet.keys_of(before, "a", count=4)
    for key in mine:
        for _ in range(5):
            fleet.publish(key, 0.2)
    fleet.wait_started(mine[0], 1)
    halves.broker.silence()
    halves.store.silence()
    fleet.wait_members("b")
    fleet.wait_started(mine[0], 2)
    halves.store.heal()
    halves.broker.heal()
    says_all_is_well(fleet)
    fleet.wait_members("a", "b")
