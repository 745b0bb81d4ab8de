"""What only a real Redis can show of the Redis job store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from celery_sticky.drivers import open_job_store
from celery_sticky.errors import StoreUnavailable
from celery_sticky.keys import Slot
from celery_sticky.stores import JobStore
from celery_sticky.stores.jobs import STOPPED, Admission, DispatchOutcome, JobState
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT, SUCCESS
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import hear, revived
from celery_sticky.testing.waiting import wait_until

StartValkey = Callable[..., ValkeyServer]
ROOT = "sticky:default:jobs"


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[JobStore]:
    store = open_job_store(server.url, "default", socket_timeout=0.5)
    yield store
    store.close()


def sent(client: Any, verb: Callable[[], object]) -> int:
    """How many scripts a verb sends."""
    client.config_resetstat()
    verb()
    return sum(int(stat["calls"]) for name, stat in client.info("commandstats").items() if name == "cmdstat_evalsha")


def test_scripts_the_server_has_forgotten_are_sent_again(store: JobStore, client: Any) -> None:
    verbs: list[Callable[[], object]] = [
        lambda: steps.queued(store),
        lambda: steps.reserved(store, "d1"),
        lambda: steps.note(store),
        lambda: steps.settle(store, steps.started()),
        lambda: store.look({SLOT: 0}),
        lambda: store.claim_tick("t", 1),
        lambda: store.stop(SLOT, "feed", "k"),
        lambda: store.close_keyspace(closed=True),
        store.records,
    ]
    for verb in verbs:
        client.script_flush()
        verb()
    assert steps.record(store).state is JobState.STOPPING


def test_a_wait_for_an_outcome_may_be_longer_than_the_wait_for_an_answer(server: ValkeyServer, store: JobStore) -> None:
    steps.starting(store)
    before = time.monotonic()
    assert store.outcome("d1", 1.2) is None
    assert time.monotonic() - before >= 1.19
    other = open_job_store(server.url, "default")
    settler = threading.Timer(1.0, steps.settle, [other, steps.failed()])
    settler.start()
    assert store.outcome("d1", 30) == DispatchOutcome("boom")
    settler.join()
    other.close()


def test_a_frozen_server_is_unavailable_within_the_socket_timeout(server: ValkeyServer, store: JobStore) -> None:
    steps.starting(store)
    server.freeze()
    for verb in (store.records, lambda: store.outcome("d1", 30)):
        before = time.monotonic()
        with pytest.raises(StoreUnavailable):
            verb()
        assert time.monotonic() - before < 3  # connect and answer: 0.5 s each
    server.thaw()
    revived(store.records)


def test_a_verb_is_one_script_however_much_it_moves(store: JobStore, client: Any) -> None:
    names = [f"d{i}" for i in range(300)]
    store.close_keyspace(closed=False)  # now the server knows the script
    for i, name in enumerate(names):
        steps.queued(store, steps.job(name, key=name, slot=i % 16))
    everything: dict[Slot, int] = dict.fromkeys(range(256), 0)
    known = {slot: seen.revision for slot, seen in store.look(everything).items()}
    assert sent(client, lambda: store.look(everything | known)) == 1
    assert sent(client, lambda: store.look(dict.fromkeys(range(256), 0))) == 1
    assert sent(client, lambda: store.close_keyspace(closed=True)) == 1
    assert steps.ids(store) == set()


def test_the_keys_of_a_name_are_read_without_the_payloads(store: JobStore, client: Any) -> None:
    for i in range(20):
        steps.queued(store, steps.job(f"d{i}", key=f"k{i}", slot=i % 16, payload=b"1" * 10_000))
    before = client.info("stats")["total_net_output_bytes"]
    assert len(store.keys("feed")) == 20
    assert client.info("stats")["total_net_output_bytes"] - before < 20_000


def test_a_look_where_nothing_has_changed_asks_for_the_revisions_alone(store: JobStore, client: Any) -> None:
    for slot in range(20):
        steps.running(store, steps.job(f"d{slot}", slot=slot))
    known = {slot: seen.revision for slot, seen in store.look(dict.fromkeys(range(20), 0)).items()}
    client.config_resetstat()
    assert store.look(known) == {}
    stats = client.info("commandstats")
    assert {name: stat["calls"] for name, stat in stats.items() if name.startswith(("cmdstat_h", "cmdstat_x"))} == {
        "cmdstat_hmget": 1
    }


def test_the_global_prefix_stands_before_every_key(server: ValkeyServer, client: Any) -> None:
    connection = Connection(server.url, transport_options={"global_keyprefix": "app7:"})
    store, other = (open_job_store(connection, "k") for _ in range(2))
    other.watch(0)
    steps.running(store, steps.job("d1", slot=1))
    steps.queued(store, steps.job("d2", slot=2))
    steps.note(store, to=steps.job(slot=1))
    store.claim_tick("t", 1)
    hear(other, 1)
    names = "1 notes:d1 2 job:d1 job:d2 outcome:d1 queued fences revisions ticks"
    assert set(client.keys()) == {f"app7:sticky:k:jobs:{name}" for name in names.split()}
    assert client.pubsub_channels() == ["app7:sticky:k:jobs:signals:0"]
    store.close_keyspace(closed=True)
    assert client.exists("app7:sticky:k:jobs:closed")
    store.close()
    other.close()


def test_of_jobs_that_are_gone_nothing_piles_up(store: JobStore, client: Any) -> None:
    for i, end in enumerate((steps.failed, steps.ended)):
        new = steps.starting(store, steps.job(f"d{i}"))
        steps.note(store)
        steps.settle(store, end(new.id), ttl=0.05)
    steps.queued(store, steps.job("stopped"), ttl=0.05)
    store.stop(SLOT, "feed", "k")
    left = {f"{ROOT}:{name}" for name in ("fences", "revisions")}
    wait_until(lambda: set(client.keys()) == left)


def test_signals_stay_in_their_database(server: ValkeyServer, store: JobStore) -> None:
    elsewhere = open_job_store(server.url.replace("/0", "/1"), "default")
    store.watch(0)
    steps.queued(elsewhere, steps.job(slot=9))
    elsewhere.close()
    steps.queued(store)
    assert set(hear(store, SLOT)) == {SLOT}


def test_what_is_no_signal_is_passed_over(store: JobStore, client: Any) -> None:
    store.watch(0)
    for payload in (b"", b"x", b"-1", b"\xff\xfe", "²", b"3:later"):
        client.publish(f"{ROOT}:signals:0", payload)
    client.publish(f"{ROOT}:signals:0", "7")
    assert set(hear(store, 7)) == {7}


def test_a_key_of_another_type_is_told(store: JobStore, client: Any) -> None:
    client.set(f"{ROOT}:{SLOT}", "something else")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        steps.queued(store)


def test_what_is_amiss_in_one_slot_is_seen_from_what_goes_well_elsewhere(store: JobStore, client: Any) -> None:
    for slot in (SLOT, SLOT + 1):
        steps.running(store, steps.job(f"d{slot}", slot=slot))
    assert client.exists(store.where(SLOT))
    client.set(store.where(SLOT), "something else")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        store.look({SLOT: 0, SLOT + 1: 0})
    assert store.look({}) == {}
    assert store.look({SLOT + 1: 0}).keys() == {SLOT + 1}


def test_a_server_out_of_memory_admits_nothing_and_lets_owners_go_on(store: JobStore, client: Any) -> None:
    for i, begin in enumerate((steps.running, steps.running, steps.starting, steps.queued, steps.queued)):
        begin(store, steps.job(f"d{i}", key=f"k{i}"))
    before = store.look({SLOT: 0})
    client.config_set("maxmemory", 1)
    for verb in (lambda: steps.ask(store, steps.job("new")), lambda: steps.note(store, to=steps.job(key="k0"))):
        with pytest.raises(StoreUnavailable, match="OOM"):
            verb()
    assert store.look({SLOT: 0}) == before
    store.open(SLOT, EPOCH + 1)
    steps.reserved(store, "d0", epoch=EPOCH + 1)
    assert store.stop(SLOT, "feed", "k3")
    steps.settle(store, steps.failed("d1"), steps.started("d2"), epoch=EPOCH + 1)
    assert {found.id: found.state for found in store.records()} == {
        "d0": JobState.STARTING,
        "d1": JobState.FAILING,
        "d2": JobState.RUNNING,
        "d4": JobState.QUEUED,
    }
    store.close_keyspace(closed=True)
    steps.settle(store, *(steps.ended(f"d{i}") for i in range(3)), epoch=EPOCH + 1)
    assert steps.ids(store) == set()
    assert [store.outcome(f"d{i}", 0) for i in range(2, 5)] == [
        SUCCESS,
        DispatchOutcome(STOPPED),
        DispatchOutcome(STOPPED),
    ]
    client.config_set("maxmemory", 0)
    assert steps.ask(store, steps.job("new")) == (Admission.CLOSED, None)


def test_a_waiting_store_sends_nothing(store: JobStore, commands: Callable[[], int]) -> None:
    store.watch(0)
    before = commands()
    store.watch(0.5)
    assert commands() - before <= 1  # our own INFO
