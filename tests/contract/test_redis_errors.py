"""Every way in which a real server refuses: how a store's client takes it, and that it goes on when it is over."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from harness.programs import every_program
from kombu import Connection

from celery_sticky.drivers import open_job_store, open_placement_store, open_queues, open_store
from celery_sticky.errors import BrokerUnavailable, DocumentDamaged, RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.queues import Tenure
from celery_sticky.redis_errors import REFUSALS, Cure, describe, refusal_of
from celery_sticky.stores.base import Store
from celery_sticky.stores.lent import Closing
from celery_sticky.testing.queue_steps import open_slot
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import first_view, joined, revived
from celery_sticky.testing.waiting import wait_until

Ask = Callable[[], object]
StartValkey = Callable[..., ValkeyServer]


@pytest.fixture(params=every_program())
def server(valkey: StartValkey, request: pytest.FixtureRequest) -> ValkeyServer:
    return valkey(program=request.param)


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    with server.client() as client:
        yield client


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[Store]:
    with closing(open_store(server.url, "default", socket_timeout=1.0)) as store:
        joined(store, first_view(store), "a")
        store.watch(0)
        yield store


def code_of(ask: Callable[[], object]) -> str:
    """Return the code of the refusal that `ask` meets."""
    with pytest.raises(StoreRefused) as caught:
        ask()
    refusal = refusal_of(caught.value.__cause__ or caught.value)
    assert refusal is not None and refusal.advice in str(caught.value) and refusal.code in str(caught.value)
    return refusal.code


def heartbeat(store: Store) -> Callable[[], object]:
    return lambda: store.heartbeat("a-1")


def connections(client: Any) -> set[str]:
    return {one["id"] for one in client.client_list()} - {str(client.client_id())}


def test_a_server_that_was_demoted_is_left_and_asked_again(store: Store, client: Any) -> None:
    before = connections(client)
    assert len(before) == 1  # requests and signals
    client.replicaof("127.0.0.1", "1")
    assert code_of(heartbeat(store)) == "READONLY"
    wait_until(lambda: not connections(client) & before, message="the old connections are given up")
    client.config_set("replica-serve-stale-data", "no")
    assert code_of(heartbeat(store)) == "MASTERDOWN"
    client.replicaof("NO", "ONE")
    revived(lambda: store.heartbeat("a-1"))


def _job_store(url: str) -> tuple[Closing, Ask]:
    jobs = open_job_store(url, "default", socket_timeout=1.0)
    return jobs, lambda: jobs.open(1, 1)


def _placement_store(url: str) -> tuple[Closing, Ask]:
    placement_store = open_placement_store(url, "default", socket_timeout=1.0)
    return placement_store, lambda: placement_store.enlist("a", "a-1")


def _queues(url: str) -> tuple[Closing, Ask]:
    queues = open_queues(Connection(url), prefix="sticky", socket_timeout=1.0)
    counts = itertools.count(1)
    return queues, lambda: open_slot(queues, Tenure("default", 1, 1, "a-1", next(counts)))


@pytest.mark.parametrize("party", [_job_store, _placement_store, _queues])
@pytest.mark.parametrize(("option", "value"), [("min-replicas-to-write", "1"), ("replicaof", "127.0.0.1 1")])
def test_every_other_client_is_told_the_same_and_goes_on_when_it_is_over(
    server: ValkeyServer, client: Any, party: Callable[[str], tuple[Closing, Ask]], option: str, value: str
) -> None:
    made, ask = party(server.url)
    with closing(made):
        ask()
        client.replicaof(*value.split()) if option == "replicaof" else client.config_set(option, value)
        code = "READONLY" if option == "replicaof" else "NOREPLICAS"
        with pytest.raises((StoreRefused, BrokerUnavailable), match=f"{code}.*{_advice(code)}"):
            ask()
        client.replicaof("NO", "ONE") if option == "replicaof" else client.config_set(option, 0)
        revived(ask)


def _advice(code: str) -> str:
    return re.escape(next(refusal.advice for refusal in REFUSALS if refusal.code == code))


def test_a_server_without_its_replicas_is_waited_for(store: Store, client: Any) -> None:
    before = connections(client)
    client.config_set("min-replicas-to-write", 1)
    assert code_of(heartbeat(store)) == "NOREPLICAS"
    assert store.read().view is not None, "it still can be read"
    client.config_set("min-replicas-to-write", 0)
    assert store.heartbeat("a-1").alive
    assert connections(client) == before, "the connection was not at fault"


def test_a_server_that_cannot_save_is_waited_for(store: Store, server: ValkeyServer, client: Any) -> None:
    (server.folder / "dump.rdb").mkdir()  # a snapshot cannot take the name of a folder
    client.config_set("save", "1 1")
    client.set("x", 1)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", timeout=10)
    assert code_of(heartbeat(store)) == "MISCONF"
    client.config_set("stop-writes-on-bgsave-error", "no")
    assert store.heartbeat("a-1").alive


def test_a_server_that_a_script_holds_is_waited_for(store: Store, server: ValkeyServer, client: Any) -> None:
    client.config_set("lua-time-limit", 20)

    def hold() -> None:
        with server.client(socket_timeout=30.0) as other, pytest.raises(redis.ResponseError):
            other.eval("while true do end", 0)

    holding = threading.Thread(target=hold)
    holding.start()
    wait_until(lambda: _busy(client), timeout=10)
    assert code_of(heartbeat(store)) == "BUSY"
    client.script_kill()
    holding.join(10)
    assert store.heartbeat("a-1").alive


def _busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return "BUSY" in str(error)
    return False


def test_a_full_server_refuses_what_only_grows(server: ValkeyServer, client: Any) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError) as caught:
        client.set("x", 1)
    found = refusal_of(caught.value)
    assert found is not None and (found.code, found.cure) == ("OOM", Cure.WAIT)


def test_a_server_without_a_connection_to_spare_is_waited_for(store: Store, client: Any) -> None:
    store.close()
    client.config_set("maxclients", 1)
    assert code_of(heartbeat(store)) == "MAXCLIENTS"
    client.config_set("maxclients", 100)
    revived(lambda: store.heartbeat("a-1"))


def test_what_a_user_may_not_do_is_told(server: ValkeyServer, store: Store, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", "-hincrby")
    with closing(open_store(server.url.replace("//", "//bob:pw@"), "default")) as bobs:
        assert code_of(heartbeat(bobs)) == "NOPERM"
        client.execute_command("ACL", "SETUSER", "bob", "+hincrby")
        revived(lambda: bobs.heartbeat("a-1"))
        client.execute_command("ACL", "SETUSER", "bob", "-evalsha")
        assert code_of(heartbeat(bobs)) == "NOPERM"
    with closing(open_store(server.url.replace("//", "//bob:wrong@"), "default")) as bobs:
        assert code_of(heartbeat(bobs)) == "WRONGPASS"
    client.config_set("requirepass", "secret")
    with closing(open_store(server.url, "default")) as nobodys:
        assert code_of(heartbeat(nobodys)) == "NOAUTH"
    client.config_set("requirepass", "")


@pytest.mark.parametrize("name", ["view", "beats"])
def test_a_key_of_another_type_is_named_and_can_be_moved_away(store: Store, client: Any, name: str) -> None:
    client.rename(f"sticky:default:{name}", "aside")
    client.set(f"sticky:default:{name}", "something else")
    with pytest.raises(RecordUnusable, match=f"WRONGTYPE.*sticky:default:{name} is a string, not a hash"):
        store.heartbeat("a-1")
    client.rename("aside", f"sticky:default:{name}")
    assert store.heartbeat("a-1").alive


def test_a_heartbeat_that_is_no_number_is_named(store: Store, client: Any) -> None:
    client.hset("sticky:default:beats", "a-1", "oops")
    for ask in (heartbeat(store), store.read):
        with pytest.raises(RecordUnusable, match=r"integer|sticky:default:beats"):
            ask()


def test_a_document_that_cannot_be_read_is_named(store: Store, client: Any) -> None:
    client.hset("sticky:default:view", "document", "{")
    with pytest.raises(DocumentDamaged, match=r"redis://.*: sticky:default:view: "):
        store.read()


def test_a_server_that_loads_its_data_is_waited_for() -> None:
    answer = b"-LOADING Redis is loading the dataset in memory\r\n"
    with fake_server(answer) as url, closing(open_store(url, "default")) as store:
        assert code_of(heartbeat(store)) == "LOADING"


def test_a_cluster_is_refused_by_name() -> None:
    answer = b"-CLUSTERDOWN Hash slot not served\r\n"
    with fake_server(answer) as url, closing(open_store(url, "default")) as store:
        assert code_of(heartbeat(store)) == "CLUSTERDOWN"
        with pytest.raises(StoreUnavailable, match="Redis Cluster is not supported"):
            store.read()


@contextmanager
def fake_server(answer: bytes) -> Iterator[str]:
    """A server that lets everybody in and gives every script the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=flow, args=(peer,), daemon=True).start()

        def flow(peer: socket.socket) -> None:
            with peer:
                while said := peer.recv(65536):
                    scripted = b"EVAL" in said or b"SCRIPT" in said
                    peer.sendall(answer if scripted else b"+OK\r\n" * said.count(b"*"))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# -- the table, without a server ---------------------------------------------------------------


@pytest.mark.parametrize("code", [refusal.code for refusal in REFUSALS if refusal.code != "MAXCLIENTS"])
def test_a_code_is_read_wherever_it_stands(code: str) -> None:
    for text in (f"{code} said so", f"ERR Error running script (call to f_0): @user_script:1: -{code} said so"):
        found = refusal_of(redis.ResponseError(text))
        assert found is not None and found.code == code
        assert describe(text).endswith(found.advice)


def test_what_is_no_refusal_is_told_as_it_is() -> None:
    assert refusal_of(redis.ConnectionError("Connection refused")) is None
    assert describe(redis.TimeoutError("Timeout reading")) == "TimeoutError: Timeout reading"
    assert describe("ERR unknown") == "ERR unknown"


def test_the_page_tells_every_refusal() -> None:
    page = Path(__file__).parents[2].joinpath("docs/reference/server-errors.md").read_text()
    for refusal in REFUSALS:
        assert f"`{refusal.code}`" in page or refusal.text.split("|")[0] in page, refusal.code
