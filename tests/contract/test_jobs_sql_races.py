"""Two job stores at the same rows, on databases with a server: what waits for what, and what a lost answer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from harness.sql_races import Doing, Stranger
from harness.sql_servers import connect
from harness.sql_stores import InDatabase, database

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql import Database
from celery_sticky.sql.link import Link
from celery_sticky.stores.jobs import Admission, Checkpoint, JobState, JobStore
from celery_sticky.stores.notes import FailedDelivery, Fate
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.notes import waiting
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT, SUCCESS

PLACE = KeyPlace("k")
LOCK_JOB = "SELECT id FROM {job} WHERE id = 'd1' FOR UPDATE"
LOCK_SLOT = f"SELECT slot FROM {{job_slot}} WHERE slot = '{SLOT}' FOR UPDATE"
LOCK_ADMISSIONS = "SELECT part FROM {job_space} WHERE part = 'closed' FOR UPDATE"


@pytest.fixture
def clear(server_url: str) -> Iterator[Database]:
    """An empty database, and a connection to look at it."""
    InDatabase(server_url, SqlJobs)
    own = database(server_url)
    yield own
    own.close()


@pytest.fixture
def open_store(clear: Database, server_url: str) -> Iterator[Callable[[], JobStore]]:
    """Opens stores, which are closed after the test."""
    stores: list[SqlJobs] = []

    def open_store() -> JobStore:
        stores.append(SqlJobs(database(server_url), "default", prefix="one"))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], JobStore]) -> JobStore:
    return open_store()


@pytest.fixture
def other(open_store: Callable[[], JobStore]) -> JobStore:
    return open_store()


@pytest.fixture
def stranger(clear: Database, server_url: str) -> Iterator[Stranger]:
    with connect(server_url) as raw:
        yield Stranger(raw, clear.tables)


def fence(verb: Callable[[], object]) -> int:
    """Return the epoch that refuses; 0: none."""
    try:
        verb()
    except Fenced as fenced:
        return fenced.epoch
    return 0


# -- Fences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [SLOT, PLACE])
def test_a_fence_waits_for_a_settlement_under_way_and_its_owner_sees_what_that_has_settled(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger, slot: Slot
) -> None:
    steps.starting(store, steps.job(slot=slot))
    stranger.run(LOCK_JOB)
    settling = Doing(clear, lambda: fence(partial(steps.settle, store, steps.started(), slot=slot)), 1)
    opening = Doing(clear, lambda: fence(partial(other.open, slot, EPOCH + 1)), 2)
    stranger.end()
    assert (settling.result(), opening.result()) == (0, 0)
    (found,) = other.look({slot: 0})[slot].records
    assert (found.state, found.fresh) == (JobState.RUNNING, False)


@pytest.mark.parametrize(
    "verb",
    [
        lambda store: store.reserve(SLOT, EPOCH, "w1", ["d1"]),
        lambda store: steps.settle(store, steps.started(), notes=[waiting(store)[0].id]),
        lambda store: store.save(SLOT, EPOCH, [Checkpoint("d1", 1, 1, b"1")]),
    ],
    ids=["reserve", "settle", "save"],
)
def test_an_owner_of_an_old_epoch_that_waited_for_a_fence_is_refused_and_changes_nothing(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger, verb: Callable[[JobStore], object]
) -> None:
    steps.starting(store)
    steps.note(store)
    before = other.look({SLOT: 0})
    stranger.run(LOCK_SLOT)
    opening = Doing(clear, lambda: other.open(SLOT, EPOCH + 1), 1)
    late = Doing(clear, lambda: fence(lambda: verb(store)), 2)
    stranger.end()
    opening.result()
    assert late.result() == EPOCH + 1
    assert other.look({SLOT: 0}) == before and other.outcome("d1", 0) is None


# -- Dispatches ----------------------------------------------------------------------------------


def test_of_two_dispatches_of_one_key_at_once_one_is_admitted(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger
) -> None:
    steps.queued(store, steps.job("d0", key="k0"))  # the row that both lock is there
    stranger.run(LOCK_ADMISSIONS)
    first = Doing(clear, lambda: steps.ask(store, steps.job("d1"))[0], 1)
    second = Doing(clear, lambda: steps.ask(other, steps.job("d2"))[0], 2)
    stranger.end()
    assert {first.result(), second.result()} == {Admission.ADMITTED, Admission.EXISTS}
    assert len(store.records(key="k")) == 1


def test_a_dispatch_and_a_repeat_at_once_are_one(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger
) -> None:
    steps.queued(store, steps.job("d0", key="k0"))
    stranger.run(LOCK_ADMISSIONS)
    asked = [Doing(clear, partial(steps.ask, one, steps.job()), n) for n, one in enumerate((store, other), 1)]
    stranger.end()
    assert {one.result()[0] for one in asked} == {Admission.ADMITTED, Admission.REPEATED}


def test_a_dispatch_waits_until_a_place_is_vacated_and_takes_it_again(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger
) -> None:
    steps.running(store, steps.job(slot=PLACE))
    before = steps.revision(store, PLACE)
    stranger.run(LOCK_JOB)
    ending = Doing(clear, lambda: steps.settle(store, steps.ended(), slot=PLACE), 1)
    asking = Doing(clear, lambda: steps.ask(other, steps.job("d2", name="other", slot=PLACE))[0], 2)
    stranger.end()
    ending.result()
    assert asking.result() is Admission.ADMITTED
    assert steps.ids(store, PLACE) == {"d2"} and steps.revision(store, PLACE) > before
    other.open(PLACE, 1)  # the fence went with the last job


def test_a_note_that_waited_for_the_end_of_its_job_is_not_left(
    store: JobStore, other: JobStore, clear: Database, stranger: Stranger
) -> None:
    steps.running(store)
    stranger.run(LOCK_JOB)
    ending = Doing(clear, lambda: steps.settle(store, steps.ended()), 1)
    telling = Doing(clear, lambda: steps.note(other), 2)
    stranger.end()
    ending.result()
    assert telling.result() is Fate.NO_JOB
    assert clear.rows("SELECT COUNT(*) FROM {job_note}") == [(0,)]


# -- Locks ---------------------------------------------------------------------------------------

PLACES: list[Slot] = [0, 1, KeyPlace("a"), KeyPlace("b")]


def act(store: JobStore, random: Random) -> None:
    """Call one verb."""
    slot, key = random.choice(PLACES), random.choice("kl")
    job = steps.job(f"d{random.randrange(10**9)}", key=key, slot=slot)
    seen = store.look({slot: 0}).get(slot)
    ids = [record.id for record in seen.records] if seen else []
    dead = [FailedDelivery(note.id, 1, "no", dead=True) for note in seen.notes[:2]] if seen else []
    verbs: list[Callable[[], object]] = [
        lambda: steps.ask(store, job),
        lambda: store.admit_each(
            [steps.job(f"{job.id}-{n}", key=key, slot=one) for n, one in enumerate(random.sample(PLACES, 3))],
            max_queued=9,
            outcome_ttl=0.0,
        ),
        lambda: store.stop_each([(one, "feed", key) for one in random.sample(PLACES, 3)]),
        lambda: store.notify_each([((one, "feed", key), b"1") for one in random.sample(PLACES, 3)], limit=9),
        lambda: store.reserve(slot, 1, "w", ids),
        lambda: store.settle(slot, 1, [steps.ended(one) for one in ids[:1]], [], dead, outcome_ttl=0.0),
        lambda: store.settle(slot, 1, [steps.started(one) for one in ids], [], dead, outcome_ttl=0.0),
        lambda: [store.requeue_note(note.id, limit=9) for note in store.dead_notes(limit=2)],
        store.forget_places,
        lambda: store.close_keyspace(closed=True),
    ]
    store.open(slot, 1)
    with suppress(Fenced):  # the place of a key may have been vacated and taken again meanwhile
        random.choice(verbs)()
    store.close_keyspace(closed=False)


def test_no_two_verbs_block_each_other(open_store: Callable[[], JobStore]) -> None:
    """A database would end one of two transactions that wait for each other: `StoreUnavailable`."""

    def act_often(seed: int) -> None:
        store, random = open_store(), Random(seed)
        for _ in range(60):
            act(store, random)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(act_often, range(4)))


# -- Lost answers --------------------------------------------------------------------------------


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """While this has an element, the answer to the next COMMIT is lost; it takes the element out."""
    losing: list[bool] = []
    commit = Database._commit

    def lossy(self: Database, link: Link, statement: str, *said: Any) -> int:
        answer = commit(self, link, statement, *said)
        if statement == "COMMIT" and losing:
            losing.pop()
            raise OSError("the connection broke")
        return answer

    monkeypatch.setattr(Database, "_commit", lossy)
    return losing


def test_verbs_whose_answer_was_lost_are_repeated_without_harm(
    store: JobStore, other: JobStore, lose: list[bool]
) -> None:
    def twice(verb: Callable[[], Any]) -> Any:
        lose.append(True)
        with pytest.raises(StoreUnavailable):
            verb()
        return verb()

    steps.queued(store, steps.job("d0"))  # the first dispatch also makes the slot's row
    store.stop(SLOT, "feed", "k")
    assert twice(lambda: steps.ask(store, steps.job())) == (Admission.REPEATED, None)
    twice(lambda: store.open(SLOT, EPOCH))
    assert twice(lambda: store.reserve(SLOT, EPOCH, "w1", ["d1"])).attempts == {"d1": 2}
    assert set(twice(lambda: store.save(SLOT, EPOCH, [Checkpoint("d1", 2, 1, b"1")]))) == {"d1"}
    twice(lambda: steps.settle(store, steps.started()))
    assert other.outcome("d1", 0) == SUCCESS
    steps.note(store)
    dead = FailedDelivery(waiting(store)[0].id, 1, "no", dead=True)
    twice(lambda: steps.settle(store, failed=[dead]))
    (buried,) = other.dead_notes()
    assert twice(lambda: store.requeue_note(buried.id, limit=9)) is Fate.GONE
    assert steps.notes(other) == [b"{}"]
    assert twice(lambda: store.pause(SLOT, "feed", "k")) == "d1"
    assert twice(lambda: store.resume(SLOT, "feed", "k")) == "d1"
    assert steps.record(other).generation == 1
    assert twice(lambda: store.stop(SLOT, "feed", "k")) == "d1"
    twice(lambda: steps.settle(store, steps.ended()))
    assert list(other.records()) == [] and other.ending() == 0
    assert not twice(lambda: store.claim_tick("t", steps.DECADES)).claimed
