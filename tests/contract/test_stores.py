"""The store contract on every driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.store_servers import InMemory, Private, Standing
from kombu import Connection

from celery_sticky.drivers import open_store
from celery_sticky.errors import InvalidSettings
from celery_sticky.ownership import changes
from celery_sticky.stores.base import Store
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import StoreContract, StoreServer, first_view, joined

StartValkey = Callable[..., ValkeyServer]


class TestMemory(StoreContract):
    @pytest.fixture
    def server(self) -> StoreServer[Store]:
        return InMemory(MemoryServer, MemoryStore)


class DurableServer(MemoryServer):
    """A server that loses nothing when it restarts."""

    def restart(self) -> None:
        before = self.run_id
        super().restart()
        self.run_id = before


class DurableStore(MemoryStore):
    durable = True


class TestDurable(StoreContract):
    @pytest.fixture
    def server(self) -> StoreServer[Store]:
        return InMemory(DurableServer, DurableStore)


class TestStandingRedis(StoreContract):
    @pytest.fixture
    def server(self, redis_url: str) -> StoreServer[Store]:
        return Standing(redis_url, open_store)


class TestValkey(StoreContract):
    @pytest.fixture
    def server(self, valkey: StartValkey) -> StoreServer[Store]:
        return Private(valkey(appendonly=True), open_store)


def test_a_memory_store_is_one_for_all_of_the_process() -> None:
    one, two = open_store("memory://shared", "k"), open_store(Connection("memory://shared"), "k")
    view = first_view(one)
    assert two.read().view == view
    assert open_store("memory://shared", "k", prefix="p").read().view is None
    assert open_store("memory://", "k").read().view is None


@pytest.mark.parametrize("url", ["amqp://", "nosuch://h", "sqla+sqlite:///x"])
def test_a_scheme_without_a_store_is_told_with_those_that_have_one(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"redis://.*sentinel://.*memory://"):
        open_store(url, "k")


def test_the_memory_server_can_lose_and_roll_back_its_records() -> None:
    server = MemoryServer()
    store = MemoryStore(server, "k")
    view = joined(store, first_view(store), "a")
    before = server.snapshot()
    assert store.swap(view, changes.evict(view, "a"))
    server.roll_back(before)
    assert store.read().view == view
    assert store.heartbeat("a-1").alive
    server.wipe()
    assert store.read().view is None
    assert store.read().store_id == view.store_id
