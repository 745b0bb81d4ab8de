"""Any sequence of calls has the same answers from each driver as from the reference driver in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import redis
from harness.sql_stores import InDatabase, database
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_sticky.drivers import open_job_store
from celery_sticky.errors import Fenced
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores import JobStore
from celery_sticky.stores.jobs import Checkpoint, JobState, NewJob, Report, RunResult, SlotJobs
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer
from celery_sticky.stores.notes import FailedDelivery, Note
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.stores.sql.jobs.rows import slot_of
from celery_sticky.testing.job_store_contract.steps import DECADES

T = TypeVar("T")
SLOTS: list[Slot] = [0, 1, KeyPlace("b"), KeyPlace(":b")]
IDS = [f"d{i}" for i in range(6)]
PLACES = [("a:", "b"), ("a", ":b"), ("c", "d")]
slots, ids, places = st.sampled_from(SLOTS), st.sampled_from(IDS), st.sampled_from(PLACES)
notes = st.integers(0, 1)
reports = st.builds(
    Report, ids, st.sampled_from(RunResult), st.sampled_from(["", "boom"]), st.integers(0, 2), st.integers(0, 2)
)


class Comparison(RuleBasedStateMachine):
    """Two drivers told the same. Clocks, and what is made of them, are each driver's own."""

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryJobServer()
        self.memory: JobStore = MemoryJobs(self.server, "k")
        self.driver = self.open_driver()
        self.epochs: dict[Slot, int] = dict.fromkeys(SLOTS, 1)

    def open_driver(self) -> JobStore:
        """Return a store of the driver, without any records."""
        raise NotImplementedError

    def write_tick(self, begins: int) -> None:
        """Write down when the last claimed period of the ticker began, in milliseconds since the Unix epoch."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.memory.close()
        self.driver.close()

    @rule(job_id=ids, place=places, slot=slots, payload=st.sampled_from([b"1", b"2"]), most=st.integers(0, 4))
    def admit(self, job_id: str, place: tuple[str, str], slot: Slot, payload: bytes, most: int) -> None:
        new = NewJob(*place, slot, job_id, payload, durable=most % 2 == 1)
        self.same(lambda store: store.admit(new, max_queued=most, outcome_ttl=600))

    @rule(slot=slots, place=places)
    def stop(self, slot: Slot, place: tuple[str, str]) -> None:
        self.same(lambda store: store.stop(slot, *place))

    @rule(slot=slots, place=places, payload=st.sampled_from([None, b"1", b"2"]), restart=st.booleans())
    def update(self, slot: Slot, place: tuple[str, str], payload: bytes | None, restart: bool) -> None:
        self.same(lambda store: store.update(slot, *place, payload, restart=restart))

    @rule(slot=slots, place=places)
    def pause(self, slot: Slot, place: tuple[str, str]) -> None:
        self.same(lambda store: store.pause(slot, *place))

    @rule(slot=slots, place=places)
    def resume(self, slot: Slot, place: tuple[str, str]) -> None:
        self.same(lambda store: store.resume(slot, *place))

    @rule(slot=slots, place=places, payload=st.sampled_from([b"1", b"2"]), limit=st.integers(0, 6))
    def notify(self, slot: Slot, place: tuple[str, str], payload: bytes, limit: int) -> None:
        self.same(lambda store: store.notify(slot, *place, payload, limit=limit))

    @rule(closed=st.sampled_from([True, False, False]))
    def close_keyspace(self, closed: bool) -> None:
        self.same(lambda store: store.close_keyspace(closed=closed))

    @rule(slot=slots, above=st.integers(-1, 1))
    def open(self, slot: Slot, above: int) -> None:
        epoch = self.epochs[slot] + above
        if self.same(lambda store: _fence(lambda: store.open(slot, epoch))) == 0:
            self.epochs[slot] = epoch

    @rule(slot=slots, above=st.sampled_from([-1, 0, 0, 0, 0]), wanted=st.lists(ids, unique=True), old=st.booleans())
    def reserve(self, slot: Slot, above: int, wanted: list[str], old: bool) -> None:
        epoch, answers = self.epochs[slot] + above, {}

        def reserve(store: JobStore) -> int:
            known = _revision(store, slot) - old
            fence = _fence(lambda: answers.update({store: store.reserve(slot, epoch, "w", wanted, known=known)}))
            assert store not in answers or answers[store].revision == (0 if old else _revision(store, slot))
            return fence

        self.same(reserve)
        if self.memory in answers:
            assert answers[self.memory].attempts == answers[self.driver].attempts

    @rule(
        slot=slots,
        above=st.sampled_from([-1, 0, 0, 0, 0]),
        said=st.lists(reports, max_size=4),
        taken=st.sets(notes),
        lost=st.lists(st.tuples(notes, st.integers(1, 3), st.booleans()), max_size=2),
        old=st.booleans(),
    )
    def settle(
        self,
        slot: Slot,
        above: int,
        said: list[Report],
        taken: set[int],
        lost: list[tuple[int, int, bool]],
        old: bool,
    ) -> None:
        epoch = self.epochs[slot] + above

        def settle(store: JobStore) -> int:
            waiting = [note.id for note in _notes(store, slot)]
            notes = [note for i, note in enumerate(waiting) if i in taken]
            failed = [FailedDelivery(waiting[i], n, "no", dead) for i, n, dead in lost if i < len(waiting)]
            known, answers = _revision(store, slot) - old, []
            settled = partial(store.settle, slot, epoch, said, notes, failed, outcome_ttl=600, known=known)
            fence = _fence(lambda: answers.append(settled()))
            assert answers in ([], [0 if old else _revision(store, slot)])
            return fence

        self.same(settle)

    @rule(which=notes, limit=st.integers(0, 6))
    def requeue_note(self, which: int, limit: int) -> None:
        self.same(lambda store: [store.requeue_note(dead.id, limit=limit) for dead in store.dead_notes()[which:][:1]])

    @rule(which=notes)
    def drop_note(self, which: int) -> None:
        self.same(lambda store: [store.drop_note(dead.id) for dead in store.dead_notes()[which:][:1]])

    @rule(slot=slots, above=st.sampled_from([-1, 0, 0, 0, 0]), job_id=ids, at=st.tuples(notes, st.integers(1, 3)))
    def save(self, slot: Slot, above: int, job_id: str, at: tuple[int, int]) -> None:
        checkpoint, answers = Checkpoint(job_id, *at, b"[%d,%d]" % at), []

        def save(store: JobStore) -> int:
            return _fence(lambda: answers.append(set(store.save(slot, self.epochs[slot] + above, [checkpoint]))))

        self.same(save)
        assert answers[1:] == answers[:1]

    @rule(every=st.sampled_from([DECADES, DECADES / 2, DECADES * 0.7]))
    def claim_tick(self, every: float) -> None:
        told: list[float] = []

        def claim(store: JobStore) -> bool:
            tick = store.claim_tick("t", every)
            told.append(tick.next_in)
            return tick.claimed

        self.same(claim)
        assert told[0] == pytest.approx(told[1], abs=10)

    @rule()
    def set_clocks_back(self) -> None:
        """Record a tick as a clock that was ahead did."""
        future = int((time.time() + 3600) * 1000)
        self.server.records["k"].ticks["t"] = future
        self.write_tick(future)

    @invariant()
    def both_have_the_same_written_down(self) -> None:
        self.same(lambda store: [_bare(store.look({slot: 0}).get(slot)) for slot in SLOTS])
        self.same(lambda store: [replace(dead, id="", died=0.0) for dead in store.dead_notes()])
        self.same(lambda store: [store.outcome(job_id, 0) for job_id in IDS])
        self.same(lambda store: [store.stop_error(job_id) for job_id in IDS[:2]])
        self.same(lambda store: store.ending())
        self.same(lambda store: set(store.keys(PLACES[0][0])))  # here a key may be in several slots
        self.same(lambda store: set(found.revisions) if (found := store.places(0)) else None)

    def same(self, verb: Callable[[JobStore], T]) -> T:
        """Do it at both; the answer is the same."""
        ours, theirs = verb(self.memory), verb(self.driver)
        assert ours == theirs
        return ours


class OnRedis(Comparison):
    """Redis, and the keys that it may have."""

    client: Any
    url: str

    def open_driver(self) -> JobStore:
        for key in self.client.scan_iter("model:*"):
            self.client.delete(key)
        return open_job_store(self.url, "k", prefix="model", socket_timeout=5.0)

    def write_tick(self, begins: int) -> None:
        self.client.hset("model:k:jobs:ticks", "t", begins)

    @invariant()
    def nothing_else_is_left_of_a_job(self) -> None:
        records = self.driver.records()
        assert self.client.smembers("model:k:jobs:queued") == {record.id for record in records if record.fresh}
        ending = {record.id for record in records if record.state is JobState.STOPPING or record.replaces}
        assert self.client.smembers("model:k:jobs:ending") == ending
        kept = {f"model:k:jobs:job:{record.id}" for record in records}
        assert set(self.client.scan_iter("model:k:jobs:job:*")) == kept
        for kind in ("notes", "failed"):
            assert set(self.client.scan_iter(f"model:k:jobs:{kind}:*")) <= {
                key.replace(":job:", f":{kind}:") for key in kept
            }

    @invariant()
    def the_payloads_of_dead_notes_are_theirs(self) -> None:
        dead = self.driver.dead_notes()
        kept = self.client.hgetall("model:k:jobs:dead_payloads")
        assert int(kept.pop("", 0)) == sum(note.size for note in dead)
        assert {entry: len(payload) for entry, payload in kept.items()} == {note.id: note.size for note in dead}

    @invariant()
    def nothing_is_left_of_the_places_of_keys_without_records(self) -> None:
        there = {record.slot for record in self.driver.records() if isinstance(record.slot, KeyPlace)}
        assert set(self.client.hkeys("model:k:jobs:places")) - {""} == there
        assert {slot for slot in self.client.hkeys("model:k:jobs:fences") if slot.startswith("=")} <= there
        for kind in ("", "notes:"):
            assert {
                key.removeprefix(f"model:k:jobs:{kind}") for key in self.client.scan_iter(f"model:k:jobs:{kind}=*")
            } <= there


class OnSql(Comparison):
    """A database, and the rows that it may have."""

    url: str

    def open_driver(self) -> JobStore:
        InDatabase(self.url, SqlJobs)
        self.database = database(self.url)
        return SqlJobs(self.database, "k", prefix="model")

    def write_tick(self, begins: int) -> None:
        self.driver.claim_tick("t", DECADES)
        self.database.run("UPDATE {job_tick} SET begins = %s", [begins])

    @invariant()
    def what_others_wait_for_is_marked(self) -> None:
        marks = {bytes(row[0]).decode(): row[1] for row in self.database.rows("SELECT id, waits FROM {job}")}
        records = self.driver.records()
        assert marks == {
            record.id: record.fresh + 2 * (record.state is JobState.STOPPING or record.replaces) for record in records
        }

    @invariant()
    def nothing_is_left_of_what_is_gone(self) -> None:
        lost = "SELECT COUNT(*) FROM {job_note} n WHERE NOT EXISTS (SELECT 1 FROM {job} j WHERE j.id = n.job)"
        assert self.database.rows(lost) == [(0,)]
        places = {record.slot for record in self.driver.records() if isinstance(record.slot, KeyPlace)}
        rows = self.database.rows("SELECT slot FROM {job_slot}")
        assert {slot_of(row[0]) for row in rows if bytes(row[0])[:1] == b"="} == places


def _revision(store: JobStore, slot: Slot) -> int:
    seen = store.look({slot: 0}).get(slot)
    return seen.revision if seen is not None else 0


def _fence(verb: Callable[[], object]) -> int:
    """Return the epoch that refuses; 0: none."""
    try:
        verb()
    except Fenced as fenced:
        return fenced.epoch
    return 0


def _notes(store: JobStore, slot: Slot) -> tuple[Note, ...]:
    seen = store.look({slot: 0})
    return seen[slot].notes if slot in seen else ()


def _bare(seen: SlotJobs | None) -> object:
    if seen is None:
        return set(), [], False
    assert all(record.version <= seen.revision for record in seen.records)
    records = {replace(record, created=0.0, version=0) for record in seen.records}
    return records, [(note.name, note.key, note.payload, note.failed) for note in seen.notes], seen.more


def compare(machine: type[Comparison], examples: int) -> None:
    """Try so many sequences of calls."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)


@pytest.mark.timeout(120)
def test_redis_answers_as_the_reference_does(redis_url: str) -> None:
    class OnThisServer(OnRedis):
        url = redis_url

    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        OnThisServer.client = client
        compare(OnThisServer, 60)


@pytest.mark.timeout(300)
def test_a_database_answers_as_the_reference_does(sql_url: str) -> None:
    in_file = sql_url.startswith("sqlite")

    class InThisDatabase(OnSql):
        url = f"{sql_url}?synchronous=OFF" if in_file else sql_url

    compare(InThisDatabase, 60 if in_file else 15)
