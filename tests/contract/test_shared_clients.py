"""One client for the stores of several keyspaces: the same for every driver that offers one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from harness.sql_stores import InDatabase, database
from kombu import Connection

from celery_sticky.drivers import open_job_store, open_placement_store, open_shared, open_store, shares_clients
from celery_sticky.errors import DocumentDamaged, RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.redis_resp import pack
from celery_sticky.slots import Slot
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.jobs import Admission, JobCounts, NewJob
from celery_sticky.stores.shared import OwnClient, SharedClient
from celery_sticky.stores.sql import SqlStore
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.stores.sql.placement import SqlPlacementStore
from celery_sticky.stores.sql.shared import SqlShared
from celery_sticky.testing.job_store_contract.steps import queued
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import first_view, joined, revived
from celery_sticky.testing.waiting import wait_until


class Place:
    """A server, and how to open its stores."""

    def __init__(self, url: str) -> None:
        self.store, self.placement_store = partial(open_store, url), partial(open_placement_store, url)
        self.job_store = partial(open_job_store, url)
        self.shared: Callable[[], SharedClient] = partial(open_shared, Connection(url), socket_timeout=0.5)
        self.shares = shares_clients(Connection(url))


class InSql(Place):
    """A database."""

    def __init__(self, url: str) -> None:
        def opened(kind: Callable[..., Any], keyspace: str) -> Any:
            return kind(database(url), keyspace, prefix="sticky")

        InDatabase(url, SqlStore)
        self.store, self.placement_store = partial(opened, SqlStore), partial(opened, SqlPlacementStore)
        self.job_store = partial(opened, SqlJobs)
        self.shared = lambda: SqlShared(database(url), prefix="sticky")
        self.shares = True


@pytest.fixture(params=["redis", "memory", "sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return Place(f"memory://{uuid.uuid4().hex}")
    if request.param == "redis":
        return Place(str(request.getfixturevalue("server").url))
    return InSql(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def shared(place: Place) -> Iterator[SharedClient]:
    assert place.shares
    shared = place.shared()
    yield shared
    shared.close()
    shared.close()  # twice is fine


@pytest.fixture(params=["shared", "one by one"])
def reading(request: pytest.FixtureRequest, place: Place) -> Iterator[SharedClient]:
    """The shared client, and what stands in for it where a driver has none."""
    if request.param == "shared":
        yield request.getfixturevalue("shared")
        return
    own = OwnClient(place.store, place.placement_store, place.job_store)
    yield own
    own.close()


@pytest.fixture
def other(place: Place) -> Iterator[Callable[[str], Store]]:
    """Opens a store as another worker has it."""
    opened: list[Store] = []

    def open_one(keyspace: str) -> Store:
        opened.append(place.store(keyspace))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def heard(shared: SharedClient, count: int) -> dict[Any, list[Any]]:
    """Watch until so many signals have arrived."""
    found: dict[Any, list[Any]] = {}

    def enough() -> bool:
        for store, signals in shared.watch(1.0).items():
            found.setdefault(store, []).extend(signals)
        return sum(map(len, found.values())) >= count

    wait_until(enough, 10, "they are heard")
    return {store: signals for store, signals in found.items() if signals}


def dispatch(place: Place, keyspace: str, slot: Slot) -> None:
    """Dispatch a job, as another process does."""
    with closing(place.job_store(keyspace)) as store:
        admission, _ = store.admit(NewJob("job", "k", slot, "id", b"1"), max_queued=10, outcome_ttl=60)
    assert admission is Admission.ADMITTED


def test_signals_come_by_the_store_that_they_are_for(shared: SharedClient, other: Callable[[str], Store]) -> None:
    stores = {name: shared.store(name) for name in ("a", "b", "c")}
    for store in stores.values():
        assert not store.watch(0.0), "the first watch subscribes"
    first_view(other("a"))
    first_view(other("c"))
    assert heard(shared, 2) == {stores["a"]: [ViewChanged(1)], stores["c"]: [ViewChanged(1)]}


def test_signals_of_jobs_come_by_the_store_that_they_are_for(shared: SharedClient, place: Place) -> None:
    stores = {name: shared.job_store(name) for name in ("a", "b")}
    for store in stores.values():
        assert not store.watch(0.0), "the first watch subscribes"
    dispatch(place, "b", 3)
    assert heard(shared, 1) == {stores["b"]: [3]}
    assert stores["b"].look({3: 0})[3].records and not stores["a"].look({3: 0})


def test_a_wake_through_a_store_of_jobs_ends_a_watch(shared: SharedClient) -> None:
    shared.job_store("a").watch(0.0)
    shared.wake()
    assert not any(shared.watch(30.0).values())


def test_stores_of_all_kinds_answer(shared: SharedClient) -> None:
    assert shared.store("a").read().view is None
    assert shared.placement_store("a").enlisted() == {}
    assert shared.job_store("a").places(0) is None
    shared.placement_store("a").enlist("w", "w-1")
    assert shared.placement_store("b").enlisted() == {}


def test_a_wake_ends_a_watch(shared: SharedClient) -> None:
    shared.store("a").watch(0.0)
    shared.wake()
    assert not any(shared.watch(30.0).values())


def test_signals_that_come_while_another_store_subscribes_are_kept(
    shared: SharedClient, other: Callable[[str], Store]
) -> None:
    first, second = shared.store("a"), shared.store("b")
    first.watch(0.0)
    first_view(other("a"))
    second.watch(0.0)
    assert heard(shared, 1) == {first: [ViewChanged(1)]}


def test_many_stores_are_read_at_once(reading: SharedClient, other: Callable[[str], Store]) -> None:
    view = joined(other("c"), first_view(other("c")), "w")
    for _ in range(2):  # the second time, the server has the script
        found = reading.read_each([reading.store(name) for name in ("a", "c", "b")])
        assert [answer.view for answer in found if isinstance(answer, Reading)] == [None, view, None]
    assert isinstance(found[1], Reading) and found[1].heartbeats == {"w-1": 0}
    assert reading.read_each([]) == [] == reading.enlisted_each([])


def test_many_placement_stores_are_asked_at_once(reading: SharedClient) -> None:
    reading.placement_store("b").enlist("w", "w-1")
    for _ in range(2):
        found = reading.enlisted_each([reading.placement_store(name) for name in ("a", "b")])
        assert found == [{}, {"w": "w-1"}]


def test_jobs_of_many_keyspaces_are_counted_at_once(reading: SharedClient) -> None:
    stores = [reading.job_store(name) for name in ("a", "b")]
    queued(stores[1])
    for _ in range(2):
        empty, one = reading.job_counts_each(stores)
        assert isinstance(empty, JobCounts) and not empty.groups
        assert isinstance(one, JobCounts) and [group.count for group in one.groups] == [1]


def test_a_damaged_document_is_the_answer_of_its_keyspace(
    reading: SharedClient, other: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = first_view(other("a"))
    with monkeypatch.context() as patch:
        patch.setattr(View, "to_bytes", lambda self: b"{")
        first_view(other("b"))
    bad, good = reading.read_each([reading.store("b"), reading.store("a")])
    assert isinstance(bad, DocumentDamaged)
    assert isinstance(good, Reading) and good.view == view


def test_a_refusal_is_the_answer_of_its_keyspace(server: ValkeyServer, client: Any) -> None:
    client.set("sticky:a:view", "something else")
    client.set("sticky:b:enlisted", "something else")
    shared = open_shared(Connection(server.url))
    bad, good = shared.read_each([shared.store("a"), shared.store("b")])
    assert isinstance(bad, RecordUnusable) and "sticky:a:view is a string" in str(bad)
    assert isinstance(good, Reading)
    good_too, bad_too = shared.enlisted_each([shared.placement_store("a"), shared.placement_store("b")])
    assert good_too == {} and isinstance(bad_too, RecordUnusable)
    shared.close()


def test_a_server_that_lets_nobody_in_is_the_answer_of_every_keyspace(server: ValkeyServer) -> None:
    shared = open_shared(Connection(server.url.replace("//", "//bob:wrong@")))
    found = shared.read_each([shared.store("a"), shared.store("b")])
    assert [type(answer) for answer in found] == [StoreRefused, StoreRefused]
    shared.close()


def test_a_server_that_is_away_costs_one_timeout_for_all_keyspaces(server: ValkeyServer) -> None:
    shared = open_shared(Connection(server.url), socket_timeout=0.2)
    server.freeze()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        shared.read_each([shared.store(f"k{number}") for number in range(100)])
    assert time.monotonic() - began < 10
    shared.close()


def test_many_keyspaces_have_one_connection(server: ValkeyServer, client: Any) -> None:
    shared = open_shared(Connection(server.url))
    before = len(client.client_list())
    stores = [shared.store(f"k{number}") for number in range(50)]
    for store in stores:
        store.watch(0.0)
        store.read()
    assert len(client.client_list()) == before + 1
    assert len(client.pubsub_channels()) == 50
    shared.close()
    wait_until(lambda: len(client.client_list()) == before, 5, "they are closed")


def test_a_broken_subscription_is_of_all_stores_and_made_again_by_each(server: ValkeyServer, client: Any) -> None:
    shared = open_shared(Connection(server.url), socket_timeout=0.5)
    stores = [shared.store(f"k{number}") for number in range(3)]
    for store in stores:
        store.watch(0.0)
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises(StoreUnavailable):
        shared.watch(5.0)
    for store in stores:
        revived(partial(store.watch, 0.0))
    for number in range(3):
        with_view = open_store(server.url, f"k{number}")
        first_view(with_view)
        with_view.close()
    assert heard(shared, 3) == {store: [ViewChanged(1)] for store in stores}
    shared.close()


def test_a_refusal_that_drops_the_connections_is_told_to_those_that_listen(server: ValkeyServer, client: Any) -> None:
    """Guards: a keyspace that waits for signals of a connection which another keyspace has dropped."""
    shared = open_shared(Connection(server.url), socket_timeout=0.5)
    listens, writes = shared.store("a"), shared.store("b")
    listens.watch(0.0)
    view = first_view(writes)
    client.replicaof("127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="read only replica"):
        joined(writes, view, "w")
    with pytest.raises(StoreUnavailable, match="the subscription was dropped"):
        shared.watch(5.0)
    shared.close()


def test_a_key_of_another_type_is_of_its_keyspace(server: ValkeyServer, client: Any) -> None:
    client.set("sticky:a:view", "something else")
    shared = open_shared(Connection(server.url))
    bad, good = shared.store("a"), shared.store("b")
    with pytest.raises(RecordUnusable, match="sticky:a:view is a string"):
        bad.read()
    assert good.read().view is None
    shared.close()


def test_a_server_that_cannot_push_is_asked_all_the_same(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sticky.stores.redis.client.HELLO", pack("HELLO", 9))  # refused
    shared = open_shared(Connection(server.url), socket_timeout=0.5)
    store = shared.store("a")
    assert not store.watch(0.0)
    first_view(store)
    assert not any(shared.watch(0.1).values())
    assert not store.watch(0.1)
    shared.close()


def test_a_user_who_may_not_listen_is_told(server: ValkeyServer, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "resetchannels", "+@all")
    shared = open_shared(Connection(server.url.replace("//", "//bob:pw@")), socket_timeout=0.5)
    store = shared.store("a")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="doctor"):
            store.watch(0.0)
    assert store.read().view is None
    shared.close()
