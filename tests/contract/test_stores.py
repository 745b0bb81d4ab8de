"""The store contract on every driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kombu import Connection

from celery_sticky.errors import InvalidSettings
from celery_sticky.ownership import changes
from celery_sticky.stores import open_store
from celery_sticky.stores.base import Store
from celery_sticky.stores.memory import MemoryServer, MemoryStore
from celery_sticky.testing.server import ValkeyServer
from celery_sticky.testing.store_contract import StoreContract, StoreServer, first_view, joined

StartValkey = Callable[..., ValkeyServer]


class InMemory(StoreServer):
    def __init__(self) -> None:
        self.servers: dict[str, MemoryServer] = {}

    def connect(self, keyspace: str, prefix: str) -> Store:
        return MemoryStore(self.servers.setdefault(prefix, MemoryServer()), keyspace)

    def cut(self) -> None:
        for server in self.servers.values():
            server.cut()

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def restart(self) -> None:
        for server in self.servers.values():
            server.restart()


class Standing(StoreServer):
    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self, keyspace: str, prefix: str) -> Store:
        return open_store(self.url, keyspace, prefix=prefix)


class Private(StoreServer):
    def __init__(self, server: ValkeyServer) -> None:
        self.server = server

    def connect(self, keyspace: str, prefix: str) -> Store:
        return open_store(self.server.url, keyspace, prefix=prefix)

    def cut(self) -> None:
        with self.server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def stop(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.restart()


class TestMemory(StoreContract):
    @pytest.fixture
    def server(self) -> StoreServer:
        return InMemory()


class TestStandingRedis(StoreContract):
    @pytest.fixture
    def server(self, redis_url: str) -> StoreServer:
        return Standing(redis_url)


class TestValkey(StoreContract):
    @pytest.fixture
    def server(self, valkey: StartValkey) -> StoreServer:
        return Private(valkey(appendonly=True))


def test_a_memory_store_is_one_for_all_of_the_process() -> None:
    one, two = open_store("memory://shared", "k"), open_store(Connection("memory://shared"), "k")
    view = first_view(one)
    assert two.read().view == view
    assert open_store("memory://shared", "k", prefix="p").read().view is None
    assert open_store("memory://", "k").read().view is None


@pytest.mark.parametrize("url", ["amqp://", "nosuch://h", "sqla+sqlite:///x"])
def test_a_scheme_without_a_store_is_told_with_those_that_have_one(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"memory://.*redis://.*sentinel://"):
        open_store(url, "k")


def test_the_memory_server_can_lose_and_roll_back_its_records() -> None:
    server = MemoryServer()
    store = MemoryStore(server, "k")
    view = joined(store, first_view(store), "a")
    before = server.snapshot()
    assert store.swap(view, changes.evict(view, "a"))
    server.roll_back(before)
    assert store.read().view == view
    assert store.beat("a-1").alive
    server.wipe()
    assert store.read().view is None
    assert store.read().store_id == view.store_id
