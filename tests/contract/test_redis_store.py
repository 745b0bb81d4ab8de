"""What only a real Redis can show of the Redis store."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection

from celery_sticky.drivers import open_store
from celery_sticky.errors import DocumentDamaged, StoreUnavailable
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.stores.base import Store
from celery_sticky.stores.redis import subscription
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import first_view, hear, joined, revived
from celery_sticky.testing.waiting import wait_until

StartValkey = Callable[..., ValkeyServer]


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[Store]:
    store = open_store(server.url, "default", socket_timeout=0.5)
    yield store
    store.close()


def test_scripts_the_server_has_forgotten_are_sent_again(store: Store, client: Any) -> None:
    view = joined(store, first_view(store), "a")
    client.script_flush()
    assert store.heartbeat("a-1").alive
    assert store.read().view == view


def test_a_killed_connection_costs_at_most_one_request(store: Store, client: Any) -> None:
    joined(store, first_view(store), "a")
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    revived(lambda: store.heartbeat("a-1"))
    assert store.read().heartbeats == {"a-1": 1}


def test_a_connection_that_the_server_closed_between_two_requests_costs_none(store: Store, client: Any) -> None:
    """Guards: a client that stood idle over a restart of the server, or over its `timeout`, failed at its next use."""
    view = joined(store, first_view(store), "a")
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    wait_until(lambda: len(client.client_list()) == 1, 5, "the server has closed it")
    assert store.read().view == view


def test_a_frozen_server_is_unavailable_within_the_socket_timeout(server: ValkeyServer, store: Store) -> None:
    joined(store, first_view(store), "a")
    server.freeze()
    for _ in range(3):
        before = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.heartbeat("a-1")
        assert time.monotonic() - before < 3  # connect and answer: 0.5 s each
    server.thaw()
    revived(store.read)


def test_a_subscription_whose_server_froze_is_given_up(
    server: ValkeyServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PING_AFTER", 0.2)
    store.watch(0)
    assert list(store.watch(1.0)) == []  # the PINGs are answered
    server.freeze()
    before = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.watch(30)
    assert time.monotonic() - before < 5
    server.thaw()
    revived(lambda: store.watch(0))
    view = first_view(store)
    hear(store, ViewChanged(view.version))


def test_short_watches_too_notice_a_frozen_server(
    server: ValkeyServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PING_AFTER", 0.1)
    store.watch(0)
    server.freeze()

    def gives_up() -> bool:
        try:
            store.watch(0.05)
        except StoreUnavailable:
            return True
        return False

    wait_until(gives_up, timeout=5)
    server.thaw()


def test_a_waiting_store_sends_nothing(store: Store, commands: Callable[[], int]) -> None:
    store.watch(0)
    before = commands()
    store.watch(0.5)
    assert commands() - before <= 1  # our own INFO


def test_what_is_no_signal_is_passed_over(store: Store, client: Any) -> None:
    store.watch(0)
    for payload in (b"", b"changed:x", b"\xff\xfe", b"heard:1", b"later:1:2:3"):
        client.publish("sticky:default:signals:0", payload)
    client.publish("sticky:default:signals:0", "changed:7")
    assert hear(store, ViewChanged(7)) == [ViewChanged(7)]


def test_signals_stay_in_their_database(server: ValkeyServer, store: Store) -> None:
    elsewhere = open_store(server.url.replace("/0", "/1"), "default")
    store.watch(0)
    joined(elsewhere, first_view(elsewhere), "a")
    elsewhere.close()
    first_view(store)
    assert hear(store, ViewChanged(1)) == [ViewChanged(1)]
    assert list(store.watch(0)) == []


def test_a_key_of_another_type_is_told(store: Store, client: Any) -> None:
    client.set("sticky:default:view", "something else")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        store.read()


def test_a_damaged_document_is_told(store: Store, client: Any) -> None:
    first_view(store)
    client.hset("sticky:default:view", "document", "{")
    with pytest.raises(DocumentDamaged):
        store.read()


def test_a_user_that_may_not_ask_for_the_run_id_is_told_what_to_allow(server: ValkeyServer, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", "-info")
    store = open_store(server.url.replace("//", "//bob:pw@"), "default")
    with pytest.raises(StoreUnavailable, match=r"must be allowed the command INFO.*\+info"):
        store.read()
    assert store.revoked() == frozenset()
    store.close()


def test_a_read_only_replica_is_no_store(server: ValkeyServer, store: Store, client: Any) -> None:
    joined(store, first_view(store), "a")
    client.replicaof("127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="read only replica"):
        store.heartbeat("a-1")


def test_the_global_prefix_stands_before_every_key(server: ValkeyServer, client: Any) -> None:
    connection = Connection(server.url, transport_options={"global_keyprefix": "app7:"})
    store, other = (open_store(connection, "k") for _ in range(2))
    other.watch(0)
    view = joined(store, first_view(store), "a")
    store.revoke(["t"], ttl=60, limit=1)
    hear(other, ViewChanged(view.version))
    keys = {f"app7:sticky:k:{name}" for name in ("view", "beats", "heard")}
    assert set(client.keys()) == keys | {"app7:sticky:revoked"}
    assert client.pubsub_channels() == ["app7:sticky:k:signals:0"]
    store.close()
    other.close()


def test_a_member_whose_document_was_deleted_is_gone(store: Store, client: Any) -> None:
    joined(store, first_view(store), "a")
    client.delete("sticky:default:view")
    heartbeat = store.heartbeat("a-1")
    assert (heartbeat.alive, heartbeat.version, heartbeat.generation) == (False, 0, 0)
    assert store.read().heartbeats == {"a-1": 0}


def test_expired_ids_do_not_pile_up_beside_lasting_ones(store: Store, client: Any) -> None:
    store.revoke(["short"], ttl=0.01, limit=10)
    store.revoke(["long"], ttl=60, limit=10)
    wait_until(lambda: store.revoked() == {"long"}, timeout=5)
    store.revoke(["longer"], ttl=60, limit=10)
    assert client.zcard("sticky:revoked") == 2


def test_the_revoked_set_vanishes_with_its_last_id(store: Store, client: Any) -> None:
    store.revoke(["t"], ttl=0.05, limit=10)
    wait_until(lambda: not client.exists("sticky:revoked"), timeout=5)


@pytest.mark.parametrize("patch", ["gevent.monkey.patch_all()", "eventlet.monkey_patch()"])
def test_a_watch_lets_other_greenlets_run(server: ValkeyServer, patch: str, tmp_path: Path) -> None:
    library = patch.partition(".")[0]
    script = tmp_path / "greenlets.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import {library}{".monkey" if library == "gevent" else ""}
            {patch}
            import threading, time
            from celery_sticky.drivers import open_store
            from celery_sticky.testing.store_contract import first_view
            store, other = (open_store({server.url!r}, "k") for _ in range(2))
            turns, heard = [], []
            store.watch(0)
            def watch():
                heard.append(list(store.watch(20)))
                heard.append(list(store.watch(20)))
            watcher = threading.Thread(target=watch)
            watcher.start()
            for _ in range(5):
                time.sleep(0.02)
                turns.append(len(heard))
            first_view(other)
            while not heard:
                time.sleep(0.01)
            time.sleep(0.05)
            store.wake()
            watcher.join(5)
            print(turns, [[repr(s) for s in signals] for signals in heard])
            store.close(); other.close()
            """
        )
    )
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[0, 0, 0, 0, 0] [['ViewChanged(version=1)'], []]\n", done.stderr


def test_an_unconnected_store_can_be_woken_and_closed() -> None:
    store = open_store("redis://127.0.0.1:1/0", "k", socket_timeout=0.5)
    store.wake()
    with pytest.raises(StoreUnavailable) as caught:
        store.watch(1)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    store.close()
    store.wake()
