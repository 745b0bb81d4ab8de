"""A server that is out of memory (`maxmemory`, `noeviction`) takes what keeps leases, claims and takeovers going."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from harness.programs import every_program

from celery_sticky.drivers import open_job_store, open_placement_store, open_store
from celery_sticky.ownership import changes
from celery_sticky.stores.base import Store
from celery_sticky.stores.placement import Said, Wish
from celery_sticky.testing.job_store_contract.steps import DECADES
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import first_view, joined

StartValkey = Callable[..., ValkeyServer]


@pytest.fixture(params=every_program())
def full(valkey: StartValkey, request: pytest.FixtureRequest) -> tuple[ValkeyServer, Callable[[], None]]:
    server = valkey(program=request.param)

    def fill() -> None:
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.ResponseError, match="used memory"):
                client.set("more", "x")

    return server, fill


@pytest.fixture
def store(full: tuple[ValkeyServer, Any]) -> Iterator[Store]:
    with closing(open_store(full[0].url, "default")) as store:
        yield store


def test_members_beat_join_take_over_and_leave_on_a_full_server(full: Any, store: Store) -> None:
    _, fill = full
    view = joined(store, joined(store, first_view(store), "a"), "b")
    fill()
    assert store.heartbeat("a-1").counter == 1
    assert store.heartbeat("a-1", announce=False).heartbeats == {"a-1": 2, "b-1": 0}
    evicted = changes.evict(view, "b")
    assert store.swap(view, evicted, {"b-1": 0})
    assert not store.heartbeat("b-1").alive
    third = joined(store, evicted, "c")
    left = changes.leave(third, "a")
    assert store.swap(third, left)
    assert store.read().view == left


def test_a_revoke_is_kept_on_a_full_server(full: Any, store: Store) -> None:
    _, fill = full
    fill()
    store.revoke(["one"], ttl=60, limit=10)
    assert store.revoked() == {"one"}


def test_keys_are_claimed_given_back_and_pinned_on_a_full_server(full: Any, store: Store) -> None:
    server, fill = full
    view = joined(store, joined(store, first_view(store), "a"), "b")
    with closing(open_placement_store(server.url, "default")) as placement_store:
        placement_store.enlist("b", "b-1")
        placement_store.pin("b", "k", take=False)
        fill()
        placement_store.enlist("a", "a-1")
        claims = placement_store.claim("a-1", 1, (view.version, view.generation), [Wish("x", "", run=True)])
        assert claims.answers["x"].said is Said.GRANTED
        placement_store.release("a-1", 2, ["x"])
        assert placement_store.holder("x") == ""
        assert placement_store.pin("a", "k", take=True).token
        assert placement_store.lost("b", ["b-1"]) == {"k"}
        assert placement_store.sweep() == "p0"
        placement_store.strike("a", "a-1")


def test_a_tick_is_claimed_on_a_full_server(full: Any) -> None:
    server, fill = full
    with closing(open_job_store(server.url, "default")) as jobs:
        fill()
        assert jobs.claim_tick("report", DECADES).claimed
        assert not jobs.claim_tick("report", DECADES).claimed
        assert jobs.claim_tick("report", DECADES / 2).claimed


def test_scripts_that_the_server_does_not_know_yet_are_taken(full: Any, store: Store) -> None:
    server, fill = full
    joined(store, first_view(store), "a")
    fill()
    with server.client() as client:
        client.script_flush()
    assert store.heartbeat("a-1").alive
