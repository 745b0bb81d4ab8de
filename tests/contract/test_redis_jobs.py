"""What only a real Redis can show of the Redis job store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kombu import Connection

from celery_sticky.drivers import open_job_store
from celery_sticky.errors import StoreRefused, StoreUnavailable
from celery_sticky.redis_wire import Wire
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores import JobStore
from celery_sticky.stores.jobs import (
    STOPPED,
    Admission,
    Checkpoint,
    DispatchOutcome,
    JobState,
    Report,
    RunResult,
    digest,
)
from celery_sticky.stores.notes import FailedDelivery, Fate
from celery_sticky.stores.redis.jobs.store import CHANGED_PAGE, PAGE, RedisJobs
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import DECADES, EPOCH, SLOT, SUCCESS
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


@pytest.fixture
def other(server: ValkeyServer) -> Iterator[JobStore]:
    """Another client of the same keyspace."""
    store = open_job_store(server.url, "default")
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
        lambda: steps.settle(store, steps.started(), failed=[FailedDelivery("1-0 d1", 1, "no", dead=True)]),
        lambda: store.look({SLOT: 0}),
        lambda: store.claim_tick("t", 60),
        lambda: store.stop(SLOT, "feed", "k"),
        lambda: store.close_keyspace(closed=True),
        store.records,
        store.dead_notes,
        lambda: store.requeue_note("1-1", limit=9),
        lambda: store.drop_note("1-1"),
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
    assert steps.ids(store) == set(names)


def paged(store: JobStore, slots: Sequence[Slot]) -> set[str]:
    """Admit a job in each of these slots; return their ids."""
    jobs = [steps.job(f"d{i}", key=f"k{i}", slot=slot) for i, slot in enumerate(slots)]
    assert set(store.admit_each(jobs, max_queued=len(jobs), outcome_ttl=60)) == {Admission.ADMITTED}
    return {job.id for job in jobs}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The replies of all scripts."""
    replies: list[Any] = []
    ask = RedisJobs._ask

    def noted(store: RedisJobs, verb: str, *args: Any) -> Any:
        replies.append(reply := ask(store, verb, *args))
        return reply

    monkeypatch.setattr(RedisJobs, "_ask", noted)
    return replies


LAYOUTS: dict[str, Sequence[Slot]] = {
    "a hash that HSCAN returns in one piece": [SLOT] * 400,
    "a hash that HSCAN returns in pieces": [SLOT] * 1500,
    "many slots": [i % 90 for i in range(1500)],
    "places of some keys": [KeyPlace(f"k{i}") for i in range(400)],
    "places of many keys": [KeyPlace(f"k{i}") for i in range(1500)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_jobs_are_read_page_by_page(store: JobStore, pages: list[Any], layout: str) -> None:
    slots = LAYOUTS[layout]
    ids = paged(store, slots)
    pages.clear()
    assert sorted(record.id for record in store.records()) == sorted(ids)
    sizes = [len(records) for _, _, records in pages]
    assert max(sizes) < 1.2 * PAGE and sum(sizes) == len(ids)
    pages.clear()
    counts = store.counts()
    assert sum(group.count for group in counts.groups) == len(ids)
    assert len(counts.groups) == len({slot if isinstance(slot, int) else None for slot in slots})
    assert len(pages) == len(sizes)
    pages.clear()
    assert len(store.keys("feed")) == len(ids)
    assert len(pages) == len(sizes)


def test_large_payloads_make_pages_shorter(store: JobStore, pages: list[Any]) -> None:
    for i in range(40):
        steps.queued(store, steps.job(f"d{i}", key=f"k{i}", slot=i, payload=b"x" * 65536))
    pages.clear()
    assert len(store.records()) == 40
    assert max(len(records) for _, _, records in pages) < 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_jobs_are_stopped_page_by_page(store: JobStore, pages: list[Any], client: Any, layout: str) -> None:
    ids = paged(store, LAYOUTS[layout])
    pages.clear()
    store.close_keyspace(closed=True)
    assert len(ids) / CHANGED_PAGE <= len(pages) < 3 * len(ids) / CHANGED_PAGE
    assert steps.ids(store) == set() and client.hlen(f"{ROOT}:places") <= 1


@pytest.fixture
def after_a_page(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """Have something happen after the reply of the next script, which it gets."""
    ask = RedisJobs._ask

    def have(happen: Callable[[Any], object]) -> None:
        def interrupted(store: RedisJobs, *args: Any) -> Any:
            reply = ask(store, *args)
            monkeypatch.setattr(RedisJobs, "_ask", ask)
            happen(reply)
            return reply

        monkeypatch.setattr(RedisJobs, "_ask", interrupted)

    return have


Interrupt = Callable[[Callable[[Any], object]], None]


def test_a_keyspace_that_is_opened_again_meanwhile_keeps_its_other_jobs(
    store: JobStore, other: JobStore, after_a_page: Interrupt
) -> None:
    paged(store, LAYOUTS["many slots"])
    after_a_page(lambda _: other.close_keyspace(closed=False))
    store.close_keyspace(closed=True)
    assert len(other.records()) > 1000
    new = steps.job("new", key="new", slot=89)
    assert steps.ask(other, new, max_queued=9999)[0] is Admission.ADMITTED


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left", [150, 350])
def test_a_job_that_stays_is_found_once_while_others_end(
    store: JobStore, other: JobStore, after_a_page: Interrupt, layout: str, left: int
) -> None:
    slots = LAYOUTS[layout]
    paged(store, slots)
    stays = {f"d{i}" for i in range(len(slots) - left, len(slots))}
    after_a_page(lambda _: other.stop_each([(slots[i], "feed", f"k{i}") for i in range(len(slots) - left)]))
    found = [record.id for record in store.records()]
    assert len(found) == len(set(found)) and stays <= set(found)
    assert sum(group.count for group in store.counts().groups) == left


def shrink(client: Any, other: JobStore) -> None:
    """Stop most jobs, and store the hash in its smaller form, as a replica may hold it after a failover."""
    key = f"{ROOT}:{SLOT}"
    ids = client.hvals(key)
    other.stop_each([(SLOT, "feed", f"k{job_id[1:]}") for i, job_id in enumerate(ids) if i % 15])
    left = client.hgetall(key)
    client.delete(key)
    client.hset(key, mapping=left)


def test_a_record_that_the_server_returns_twice_is_one(
    store: JobStore, other: JobStore, client: Any, after_a_page: Interrupt
) -> None:
    paged(store, [SLOT] * 1500)
    after_a_page(lambda _: shrink(client, other))
    ids = [record.id for record in store.records()]
    assert len(ids) == len(set(ids)) and steps.ids(other) <= set(ids)


def test_a_job_that_the_server_returns_twice_counts_once(
    store: JobStore, other: JobStore, client: Any, after_a_page: Interrupt
) -> None:
    paged(store, [SLOT] * 1500)
    counted: set[str] = set()

    def note_and_shrink(page: Any) -> None:
        _, _, (_, group) = page
        counted.update(job_id.decode() for job_id in group[-1])
        shrink(client, other)

    after_a_page(note_and_shrink)
    (found,) = store.counts().groups
    assert found.count == len(counted | steps.ids(other))


def test_many_jobs_are_admitted_in_few_round_trips_and_what_is_refused_is_told(
    server: ValkeyServer, store: JobStore, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    call = Wire.call

    def counted(wire: Wire, *requests: bytes) -> list[object]:
        trips.append(len(requests))
        return call(wire, *requests)

    store.close_keyspace(closed=False)
    steps.queued(store)  # the server knows the script
    monkeypatch.setattr(Wire, "call", counted)
    jobs = [steps.job(f"n{i}", key=f"n{i}", slot=i % 16) for i in range(1100)]
    assert set(store.admit_each(jobs, max_queued=5000, outcome_ttl=60)) == {Admission.ADMITTED}
    assert trips == [500, 500, 100]
    client.set(f"{ROOT}:99", "not ours")
    refused, admitted = store.admit_each(
        [steps.job("x", key="x", slot=99), steps.job("y", key="y")], max_queued=5000, outcome_ttl=60
    )
    assert isinstance(refused, StoreRefused) and admitted is Admission.ADMITTED


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
    store.claim_tick("t", 60)
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


def test_a_tick_recorded_in_the_future_silences_a_ticker_for_no_longer_than_one_period(
    store: JobStore, client: Any
) -> None:
    client.hset(f"{ROOT}:ticks", "t", int((time.time() + 86400) * 1000))
    assert not store.claim_tick("t", DECADES).claimed
    assert int(client.hget(f"{ROOT}:ticks", "t")) == DECADES * 1000, "the period of today"
    assert store.claim_tick("t", DECADES / 2).claimed, "one that began later"


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


def test_a_server_out_of_memory_counts_failed_deliveries_and_buries_dead_notes(store: JobStore, client: Any) -> None:
    steps.running(store)
    for payload in (b"1", b"2", b"3"):
        steps.note(store, payload)
    first, second, _ = store.look({SLOT: 0})[SLOT].notes
    client.config_set("maxmemory", 1)
    steps.settle(store, failed=[FailedDelivery(first.id, 1, "no", dead=False)])
    steps.settle(store, failed=[FailedDelivery(second.id, 1, "no", dead=True)])
    assert [(note.payload, note.failed) for note in store.look({SLOT: 0})[SLOT].notes] == [(b"1", 1), (b"3", 0)]
    (dead,) = store.dead_notes()
    assert store.requeue_note(dead.id, limit=9) is Fate.SENT, "it only moves"
    assert steps.notes(store) == [b"1", b"3", b"2"]


def test_a_full_server_takes_what_controls_a_job(store: JobStore, client: Any) -> None:
    steps.running(store)
    job = SLOT, "feed", "k"
    client.config_set("maxmemory", 1)
    assert store.save(SLOT, EPOCH, [Checkpoint("d1", 1, 1, b"[1]")])
    assert store.update(*job, b"2", restart=True)
    assert store.pause(*job)
    steps.settle(store, Report("d1", RunResult.PAUSED))
    assert store.resume(*job)
    found = steps.record(store)
    assert (found.state, found.saved, found.payload, found.generation) == (JobState.QUEUED, b"[1]", b"2", 1)
    steps.reserved(store, "d1")
    assert store.stop(*job) and store.stop(*job)
    assert store.ending() == 1
    steps.settle(store, Report("d1", RunResult.UNCLEAN, "boom"))
    assert store.stop_error("d1") == "boom"


def test_records_of_an_earlier_release_are_read_and_run(store: JobStore, client: Any) -> None:
    """They have no generation and no checkpoint, and what is stopping is not counted yet."""
    steps.stopping(store)
    steps.running(store, steps.job("d2", key="k2"))
    for job_id in ("d1", "d2"):
        newer = ("generation", "saved", "digest", "durable", "failures", "strikes", "apart", "retry_at")
        client.hdel(f"{ROOT}:job:{job_id}", *newer)
    client.delete(f"{ROOT}:ending")
    found = steps.record(store, "d2")
    assert (found.generation, found.saved, found.retry_at) == (0, None, 0.0)
    assert {(group.state, group.failures, group.apart) for group in store.counts().groups} == {
        (JobState.STOPPING, 0, False),
        (JobState.RUNNING, 0, False),
    }
    assert store.keys("feed") == {"k2": digest("feed", "k2", found.payload)}
    assert store.update(SLOT, "feed", "k2", None, restart=True)
    assert store.save(SLOT, EPOCH, [Checkpoint("d2", 1, 1, b"[1]")])
    assert (steps.record(store, "d2").generation, steps.record(store, "d2").saved) == (1, b"[1]")
    store.close_keyspace(closed=True)
    assert store.ending() == 2


def test_a_waiting_store_sends_nothing(store: JobStore, commands: Callable[[], int]) -> None:
    store.watch(0)
    before = commands()
    store.watch(0.5)
    assert commands() - before <= 1  # our own INFO
