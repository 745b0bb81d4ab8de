"""The contract of queue drivers, on every driver and every kind of server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.refusing import UNKNOWN, WithoutHello
from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.errors import InvalidSettings
from celery_sticky.queues import SlotQueues
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.queues.memory_held import HeldBroker, HeldQueues
from celery_sticky.queues.redis import Layout, RedisQueues
from celery_sticky.redis_clients import client_from_connection
from celery_sticky.slots import Slot
from celery_sticky.testing.queue_contract import QueueContract
from celery_sticky.testing.queue_steps import FIRST, NEXT, bodies, open_slot, take
from celery_sticky.testing.servers.valkey import ValkeyServer


@dataclass
class InMemory:
    """A broker of this process."""

    at: MemoryBroker = field(default_factory=MemoryBroker)

    def driver(self) -> SlotQueues:
        return MemoryQueues(self.at)

    def publish(self, keyspace: str, slot: int, body: bytes, priority: int = 0) -> None:
        self.at.publish(f"sticky.{keyspace}.{slot}", body, priority)


# Servers push changes of every database: other tests on the same server must not use the same names.
PREFIX = f"sticky-{os.getpid()}"


class OnRedis:
    """A real server, reached as Celery would; publishes as Kombu does, but any bytes."""

    def __init__(self, url: str, protocol: int | None = None, **transport_options: Any) -> None:
        self.connection = Connection(url, transport_options=transport_options)
        self.layout = Layout.of(self.connection, PREFIX)
        self.client: Any = client_from_connection(self.connection, socket_timeout=5.0, protocol=protocol)

    def driver(self) -> RedisQueues:
        queues = open_queues(self.connection, prefix=PREFIX, socket_timeout=5.0)
        assert isinstance(queues, RedisQueues)
        return queues

    def publish(self, keyspace: str, slot: int, body: bytes, priority: int = 0) -> None:
        steps = [step for step in self.layout.steps if step <= priority]
        self.client.lpush(self.layout.lists(keyspace, slot)[len(steps) - 1], body)

    def names(self) -> set[str]:
        return {key.decode() for key in self.client.scan_iter() if b"for-tests" not in key}


class TestMemory(QueueContract):
    @pytest.fixture
    def broker(self) -> InMemory:
        return InMemory()


@dataclass
class InMemoryHeld:
    """A broker of this process whose slots are held by connections."""

    at: HeldBroker = field(default_factory=HeldBroker)

    def driver(self) -> SlotQueues:
        return HeldQueues(self.at)

    def publish(self, keyspace: str, slot: Slot, body: bytes, priority: int = 0) -> None:
        self.at.publish((keyspace, slot), body, priority)


class TestHeldByConnections(QueueContract):
    @pytest.fixture
    def broker(self) -> InMemoryHeld:
        return InMemoryHeld()


class TestRedis(QueueContract):
    @pytest.fixture
    def broker(self, redis_url: str) -> OnRedis:
        return OnRedis(redis_url)


class TestRedisWithKeyPrefix(QueueContract):
    @pytest.fixture
    def broker(self, redis_url: str) -> Iterator[OnRedis]:
        broker = OnRedis(redis_url, global_keyprefix="{shop}:")
        yield broker
        assert all(key.startswith(f"{{shop}}:{PREFIX}.") for key in broker.names())


@pytest.fixture(scope="module")
def embedded(guard: Any) -> Iterator[ValkeyServer]:
    server = ValkeyServer(guard, unix=True).start()
    yield server
    server.teardown()


class TestValkeyOverUnixSocket(QueueContract):
    @pytest.fixture
    def broker(self, embedded: ValkeyServer) -> OnRedis:
        broker = OnRedis(embedded.url)
        broker.client.flushall()
        return broker


class TestRedisWithoutPushes(QueueContract):
    """A server that refuses client-side caching: the driver looks again and again."""

    @pytest.fixture
    def broker(self, embedded: ValkeyServer) -> Iterator[OnRedis]:
        broker = OnRedis(embedded.url)
        broker.client.flushall()
        broker.client.execute_command("ACL", "SETUSER", "default", "-client")
        yield broker
        broker.client.execute_command("ACL", "SETUSER", "default", "+client")

    def test_it_knows_that_nothing_is_pushed(self, broker: OnRedis, connect: Callable[[], RedisQueues]) -> None:
        queues = connect()
        queues.depths([("default", 1)])
        assert not queues.pushed


@pytest.fixture(scope="module")
def proxy(guard: Any) -> Iterator[WithoutHello]:
    server = ValkeyServer(guard).start()
    with WithoutHello(server.url, UNKNOWN) as proxy:
        yield proxy
    server.teardown()


class TestOldProtocol(QueueContract):
    """A server or proxy that does not know RESP3. (No access list of a server forbids HELLO: it is part of a login.)"""

    @pytest.fixture
    def broker(self, proxy: WithoutHello) -> OnRedis:
        broker = OnRedis(proxy.url, protocol=2)
        broker.client.flushall()
        return broker

    def test_it_was_refused(self, proxy: WithoutHello, connect: Callable[[], RedisQueues]) -> None:
        queues, refused = connect(), proxy.refused
        queues.depths([("default", 1)])
        assert proxy.refused == refused + 1 and not queues.pushed


def test_other_priority_steps_and_another_separator_of_the_transport_are_honoured(redis_url: str) -> None:
    broker = OnRedis(redis_url, priority_steps=[0, 5], sep="::")
    assert broker.layout.lists("default", 1) == [f"{PREFIX}.default.1", f"{PREFIX}.default.1::5"]


def test_messages_of_former_priority_steps_are_fetched_in_their_order(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, now = OnRedis(redis_url), OnRedis(redis_url, priority_steps=[0, 5])
    for priority in (9, 6, 3, 0):
        before.publish("default", 7, b"%d" % priority, priority)
    now.publish("default", 7, b"5", 5)
    queues = now.driver()
    open_slot(queues, FIRST)
    assert "not in priority_steps [0, 5]" in caplog.text
    fetched = take(queues, FIRST)
    assert [d.priority for d in fetched.deliveries] == [0, 3, 5, 6, 9]
    assert bodies(fetched) == [b"0", b"3", b"5", b"6", b"9"] and fetched.drained
    open_slot(queues, NEXT)
    assert [d.priority for d in take(queues, NEXT).deliveries] == [0, 3, 5, 6, 9]
    queues.close()


@pytest.mark.parametrize("steps", [[3, 0], [0, "3"], [0, 0]])
def test_priority_steps_that_cannot_be_used_are_refused(steps: list[Any]) -> None:
    connection = Connection("redis://", transport_options={"priority_steps": steps})
    with pytest.raises(InvalidSettings, match="priority_steps"):
        open_queues(connection, prefix="sticky", socket_timeout=1.0)


def test_the_memory_broker_is_shared_by_the_process() -> None:
    one, other = (open_queues(Connection("memory://"), prefix="shared", socket_timeout=1.0) for _ in range(2))
    assert isinstance(one, MemoryQueues) and isinstance(other, MemoryQueues)
    assert one.broker is other.broker


def test_a_broker_without_driver_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(InvalidSettings, match=r"amqp://.*redis://.*memory://"):
        open_queues(Connection("amqp://guest:secret@nowhere"), prefix="sticky", socket_timeout=1.0)
