"""Clients made from a Kombu connection: what they connect to, and that they neither wait long nor send twice."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from harness.ways import Run, needs_tls, sentinel, tls_server
from kombu import Connection

from celery_sticky.drivers import open_queues, open_store
from celery_sticky.errors import BrokerUnavailable, InvalidSettings, StoreUnavailable
from celery_sticky.redis_clients import client_from_connection, close_client, is_redis, key_prefix, translate_errors
from celery_sticky.stores import Store
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import first_view, joined, revived
from celery_sticky.testing.waiting import wait_until

StartValkey = Callable[..., ValkeyServer]


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "bob", "pw"


def settings(url: str, ssl: Any = None, **options: Any) -> dict[str, Any]:
    connection = Connection(url, ssl=ssl, transport_options=options)
    pool = client_from_connection(connection, socket_timeout=1.5).connection_pool
    return {**pool.connection_kwargs, "class": pool.connection_class}


def test_host_user_and_database_are_those_of_the_url() -> None:
    made = settings("redis://bob:p%40w@example.org:1234/7")
    assert {name: made[name] for name in ("host", "port", "username", "password", "db")} == {
        "host": "example.org",
        "port": 1234,
        "username": "bob",
        "password": "p@w",
        "db": 7,
    }


def test_our_timeouts_stand_over_those_of_the_app_and_its_other_options_are_kept() -> None:
    made = settings("redis://h", socket_timeout=99, retry_on_timeout=True, max_connections=500, socket_keepalive=True)
    assert made["socket_timeout"] == made["socket_connect_timeout"] == 1.5
    assert made["retry"]._retries == 0
    assert not made["retry_on_timeout"]
    assert made["socket_keepalive"] is True


def test_a_unix_socket_is_reached_by_its_path() -> None:
    made = settings("redis+socket:///run/redis.sock?virtual_host=3")
    assert (made["path"], made["db"], made["class"]) == ("/run/redis.sock", 3, redis.UnixDomainSocketConnection)


def test_tls_options_come_from_the_url_or_from_broker_use_ssl() -> None:
    made = settings("rediss://h?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem")
    assert (made["class"], made["ssl_ca_certs"]) == (redis.SSLConnection, "/ca.pem")
    made = settings("redis://h", ssl={"ssl_cert_reqs": ssl.CERT_NONE})
    assert (made["class"], made["ssl_cert_reqs"]) == (redis.SSLConnection, ssl.CERT_NONE)


@pytest.mark.skipif("credential_provider" not in Connection().info(), reason="Kombu 5.6 brought credential providers")
def test_a_credential_provider_takes_the_place_of_user_and_password() -> None:
    provider = Provider()
    connection = Connection("redis://h", credential_provider=provider)
    client = client_from_connection(connection, socket_timeout=1)
    assert client.connection_pool.connection_kwargs["credential_provider"] is provider
    assert "password" not in client.connection_pool.connection_kwargs


def test_the_sentinels_get_their_own_password_and_our_timeouts() -> None:
    connection = Connection(
        "sentinel://:pw@a:1;sentinel://b:2",
        transport_options={"master_name": "m", "sentinel_kwargs": {"password": "spw"}},
    )
    pool: Any = client_from_connection(connection, socket_timeout=1.5).connection_pool
    assert pool.service_name == "m"
    assert pool.connection_kwargs["password"] == "pw"
    nodes = [node.connection_pool.connection_kwargs for node in pool.sentinel_manager.sentinels]
    assert [(node["host"], node["port"], node["password"]) for node in nodes] == [("a", 1, "spw"), ("b", 2, "spw")]
    assert all(node["socket_timeout"] == 1.5 and node["retry"]._retries == 0 for node in nodes)


@pytest.mark.parametrize("url", ["redis://h/notanumber", "sentinel://a:1", "memory://"])
def test_what_kombu_cannot_use_is_an_invalid_setting(url: str) -> None:
    with pytest.raises(InvalidSettings):
        client_from_connection(Connection(url), socket_timeout=1)


LISTED = "redis://:secret@a:1/0;redis://b:2/0"


@pytest.mark.parametrize("where", [LISTED, LISTED.split(";")])
def test_a_list_of_servers_is_refused_with_the_remedy_and_without_passwords(where: Any) -> None:
    with pytest.raises(
        InvalidSettings, match=r"2 servers.*redis://:\*\*@a:1/0, redis://.*b:2/0.*one server.*Sentinel"
    ) as said:
        client_from_connection(Connection(where), socket_timeout=1)
    assert "secret" not in str(said.value)
    with pytest.raises(InvalidSettings, match="2 servers"):
        open_queues(Connection(where), prefix="sticky", socket_timeout=1)


@pytest.mark.parametrize("where", ["redis://a:1/0;redis://a:1/0", ["redis://a:1/0"]])
def test_a_list_of_one_server_is_no_list(where: Any) -> None:
    client_from_connection(Connection(where), socket_timeout=1)


def test_the_key_prefix_is_that_of_the_transport_options() -> None:
    assert key_prefix(Connection("redis://", transport_options={"global_keyprefix": "x:"})) == "x:"
    assert key_prefix(Connection("redis://")) == ""


def test_redis_is_told_from_other_brokers() -> None:
    urls = ("redis://", "rediss://", "sentinel://", "redis+socket:///s", "amqp://", "memory://")
    assert [is_redis(Connection(url)) for url in urls] == [True, True, True, True, False, False]


def test_making_a_client_sends_nothing_and_leaves_the_connection_alone(valkey: StartValkey) -> None:
    server = valkey()
    connection = Connection(server.url)
    server.freeze()
    client = client_from_connection(connection, socket_timeout=1)
    assert not connection.connected
    server.thaw()
    assert client.ping()
    close_client(client)
    close_client(client)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_speaks_the_wanted_protocol_over_a_unix_socket(valkey: StartValkey, protocol: int) -> None:
    client = client_from_connection(
        Connection(valkey(unix=True).url), socket_timeout=2, decode_responses=True, protocol=protocol
    )
    assert client.client_info()["resp"] == str(protocol)
    close_client(client)


def test_a_request_whose_answer_is_late_is_not_sent_again(valkey: StartValkey) -> None:
    server = valkey()
    client = client_from_connection(Connection(server.url), socket_timeout=0.3)
    client.incr("n")
    server.freeze()
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    server.thaw()
    wait_until(lambda: client.get("n") == b"2", timeout=5)
    close_client(client)


@pytest.mark.parametrize("mark", [StoreUnavailable, BrokerUnavailable])
def test_refusals_and_broken_connections_are_unavailability(valkey: StartValkey, mark: type[Any]) -> None:
    server = valkey(config={"min-replicas-to-write": "1"})
    client = client_from_connection(Connection(server.url), socket_timeout=1)
    with pytest.raises(mark, match="NOREPLICAS") as caught, translate_errors(mark):
        client.set("k", 1)
    assert isinstance(caught.value.__cause__, redis.ResponseError)
    with pytest.raises(redis.DataError), translate_errors(mark):
        client.set("k", object())  # type: ignore[arg-type]
    server.kill()
    with pytest.raises(mark), translate_errors(mark):
        client.ping()
    close_client(client)


@needs_tls
def test_a_store_works_over_tls_and_checks_the_certificate(run: Run, tmp_path: Path) -> None:
    url, cert = tls_server(run, tmp_path)
    store = open_store(f"{url}&ssl_ca_certs={cert}", "k")
    view = joined(store, first_view(store), "a")
    assert store.read().view == view
    store.watch(0)
    store.wake()
    store.watch(5)
    store.close()
    stranger = open_store(url, "k")
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.read()
    stranger.close()


def test_a_store_behind_sentinel_follows_the_master_and_tells_another_id(
    run: Run, valkey: StartValkey, tmp_path: Path
) -> None:
    master = valkey()
    replica = valkey(config={"replicaof": f"127.0.0.1 {master.port}"})
    address, options = sentinel(run, master, tmp_path)
    connection = Connection(address, transport_options=options)
    store = open_store(connection, "k", socket_timeout=1.0)
    view = joined(store, first_view(store), "a")
    with replica.client() as client:
        wait_until(lambda: client.hget("sticky:k:view", "version") == str(view.version), timeout=10)
    store.watch(0)
    master.kill()
    with pytest.raises(StoreUnavailable):
        store.watch(5)
    wait_until(lambda: heartbeats(store), timeout=30, message="the store follows the new master")
    reading = store.read()
    assert reading.view == view
    assert reading.store_id != view.store_id
    assert not store.swap(view, view)
    revived(lambda: store.watch(0))
    store.close()


def heartbeats(store: Store) -> bool:
    try:
        return store.heartbeat("a-1").alive
    except StoreUnavailable:
        return False
