"""The servers that tests, the demo and verify start: every verb of their protocol, on a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from celery_sticky.errors import BrokerUnavailable, InvalidSettings
from celery_sticky.testing.proxy import Proxy, tcp_address
from celery_sticky.testing.servers import given
from celery_sticky.testing.servers.base import Ability, OwnServer, Server
from celery_sticky.testing.servers.valkey import ValkeyServer

StartValkey = Callable[..., ValkeyServer]


def read(server: ValkeyServer, name: str) -> str | None:
    with server.client() as client:
        value: str | None = client.get(name)
        return value


def write(server: ValkeyServer, name: str, value: str) -> None:
    with server.client() as client:
        client.set(name, value)


@pytest.mark.parametrize("appendonly", [False, True])
def test_a_copy_comes_back_with_the_next_start(valkey: StartValkey, appendonly: bool) -> None:
    server: OwnServer = (started := valkey(appendonly=appendonly))
    for value in ("old", "newer"):  # the second copy replaces the first
        write(started, "a", value)
        server.copy()
    write(started, "a", "newest")
    write(started, "b", "newest")
    server.kill()
    server.restore()
    server.start()
    assert (read(started, "a"), read(started, "b")) == ("newer", None)


@pytest.mark.parametrize("appendonly", [False, True])
def test_a_copy_comes_back_in_place(valkey: StartValkey, appendonly: bool) -> None:
    server = valkey(appendonly=appendonly)
    write(server, "a", "old")
    server.copy()
    write(server, "a", "new")
    server.restore()
    assert read(server, "a") == "old"


def test_a_full_server_refuses_writes_until_the_block_ends(valkey: StartValkey) -> None:
    server = valkey()
    with server.impaired(Ability.FILL), pytest.raises(redis.exceptions.OutOfMemoryError):
        write(server, "a", "x")
    write(server, "a", "x")


def test_the_first_queue_that_is_not_in_use_is_spoiled_until_the_block_ends(valkey: StartValkey) -> None:
    server = valkey()
    with server.client() as client:
        client.hset("q1:flight", "tag", "message")
        with server.impaired(Ability.SPOIL, ["q1", "q2", "q3"]) as spoiled:
            assert spoiled and [client.type(f"q{number}:flight") for number in (1, 2, 3)] == ["hash", "string", "none"]
        with server.impaired(Ability.SPOIL, ["q1"]) as spoiled:
            assert not spoiled
        assert client.keys() == ["q1:flight"]


@pytest.mark.parametrize("own", [True, False], ids=["started here", "given"])
def test_messages_are_found_and_deleted_by_their_prefix_alone(valkey: StartValkey, own: bool) -> None:
    started = valkey()
    server: Server = started if own else given(started.url)
    with started.client() as client:
        client.lpush("ours:queue", "… id-1 …")
        client.hset("ours:flight", "tag", "… id-2 …")
        client.zadd("ours:deferred", {"… id-3 …": 1.0})
        client.lpush("theirs", "… id-4 …")
        assert server.find(["id-1", "id-2", "id-3", "id-4", "id-5"], "ours:") == {"id-1", "id-2", "id-3"}
        server.clear("ours:")
        assert client.keys() == ["theirs"]
        server.clear()
        assert not client.keys()


def test_a_server_that_does_not_answer_is_named(valkey: StartValkey) -> None:
    server = valkey()
    server.kill()
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{server.port}"):
        server.find(["id"])


def test_no_fault_may_hit_a_server_that_was_given() -> None:
    lacks = given("redis://h/0", "broker").lacks
    assert set(lacks) == set(Ability) - {Ability.PROXY}
    assert set(lacks.values()) == {"it needs a broker that verify started itself"}
    assert Ability.PROXY in given("sentinel://h").lacks


def test_a_kind_of_server_without_support_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidSettings, match=r"amqp://me:\*\*@h// cannot be the store here; supported are Redis"):
        given("amqp://me:secret@h//", "store")
    with pytest.raises(InvalidSettings, match="carrier-pigeon"):
        given("carrier-pigeon://h")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h:7/0", ("h", 7)),
        ("redis://me:secret@h/0", ("h", 6379)),
        ("amqp://h//", ("h", 5672)),
        ("rediss://h/0", None),
        ("sentinel://h:26379", None),
        ("redis+socket:///server.sock", None),
        ("sticky+postgresql://me@h:7/db", ("h", 7)),
        ("sticky+postgresql://h/db", ("h", 5432)),
        ("sticky+mysql://h/db", ("h", 3306)),
        ("sticky+postgresql://h/db?sslmode=verify-full", None),
        ("sticky+sqlite:////folder/a.db", None),
        ("redis://a;redis://b", None),
    ],
)
def test_a_proxy_stands_before_any_plain_tcp_address(url: str, address: tuple[str, int] | None) -> None:
    assert tcp_address(url) == address


def test_the_url_of_a_proxy_is_the_url_of_the_server_but_for_the_address() -> None:
    proxy = Proxy("redis://me:secret@192.0.2.1:7/3?x=1").start()
    assert proxy.url == f"redis://me:secret@127.0.0.1:{proxy.port}/3?x=1"
    proxy.teardown()
