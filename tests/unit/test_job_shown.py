"""The state of a job as it is shown, for every case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from celery_sticky import Keyspace
from celery_sticky.jobs.shown import NO_WORKER, Owners, Place, shown
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.slots import KeyPlace
from celery_sticky.stores.base import Reading
from celery_sticky.stores.jobs import JobGroup, JobRecord, JobState

SLOT, EPOCH, TTL = 2, 5, 10.0
RECORD = JobRecord("feed", "k", SLOT, "d1", b"1", JobState.RUNNING, False, 1, EPOCH, "a", "", 0.0, 1)
MINE = Place("slot", "a", "a", EPOCH)
MOVES = replace(MINE, target="b")
TAKEN = Place("slot", "b", "b", EPOCH + 1)
EMPTY = Place(obstacle=NO_WORKER)
NOT_YET = "b has its slot and has not started it yet"
MOVING = "its slot moves from a to b: a still has tasks or jobs of this slot"


@pytest.mark.parametrize(
    ("state", "place", "expected"),
    [
        # nobody is alive: nothing runs, whatever the record says
        (JobState.QUEUED, EMPTY, ("waiting", NO_WORKER)),
        (JobState.STARTING, EMPTY, ("waiting", NO_WORKER)),
        (JobState.RUNNING, EMPTY, ("waiting", NO_WORKER)),
        (JobState.FAILING, EMPTY, ("waiting", NO_WORKER)),
        (JobState.STOPPING, EMPTY, ("stopping", NO_WORKER)),
        (JobState.PAUSING, EMPTY, ("pausing", NO_WORKER)),
        (JobState.PAUSED, EMPTY, ("paused", "")),
        (JobState.FAILED, EMPTY, ("failed", "")),
        # its worker is the owner
        (JobState.QUEUED, MINE, ("waiting", "a has its slot and has not started it yet")),
        (JobState.STARTING, MINE, ("starting", "")),
        (JobState.RUNNING, MINE, ("running", "")),
        (JobState.FAILING, MINE, ("failing", "its next start is due")),
        (JobState.STOPPING, MINE, ("stopping", "")),
        (JobState.PAUSING, MINE, ("pausing", "")),
        (JobState.PAUSED, MINE, ("paused", "")),
        (JobState.FAILED, MINE, ("failed", "")),
        # its slot moves: it runs on until the slot is given away, but does not start
        (JobState.RUNNING, MOVES, ("running", "")),
        (JobState.QUEUED, MOVES, ("waiting", MOVING)),
        (JobState.QUEUED, replace(MINE, target=""), ("waiting", "its slot leaves a, and no worker can take it")),
        # another worker owns its slot, or its own worker under another epoch
        (JobState.STARTING, TAKEN, ("waiting", NOT_YET)),
        (JobState.RUNNING, TAKEN, ("waiting", NOT_YET)),
        (JobState.FAILING, TAKEN, ("waiting", NOT_YET)),
        (JobState.RUNNING, replace(MINE, epoch=6), ("waiting", "a has its slot and has not started it yet")),
        (JobState.STOPPING, TAKEN, ("stopping", "")),
        # places of keys have no epoch that is known
        (JobState.RUNNING, Place("key", "a", "a"), ("running", "")),
        (JobState.RUNNING, Place("key", "a", "b"), ("running", "")),
        (JobState.QUEUED, Place("key", "a", "b"), ("waiting", "its key moves from a to b")),
    ],
)
def test_the_shown_state_is_the_record_as_long_as_its_worker_has_it(
    state: JobState, place: Place, expected: tuple[str, str]
) -> None:
    assert shown(replace(RECORD, state=state, failures=int(state is JobState.FAILING)), place) == expected


def test_a_job_that_its_worker_does_not_start_waits() -> None:
    record = replace(RECORD, state=JobState.FAILING, error="nobody has pinned it")
    assert shown(record, MINE) == ("waiting", "nobody has pinned it")
    group = JobGroup(3, SLOT, JobState.FAILING, "a", EPOCH, 0, False, "feed", "k")
    assert shown(group, MINE)[0] == "waiting"


@pytest.mark.parametrize(
    ("state", "failures", "expected"),
    [
        (JobState.RUNNING, 1, ("running", "")),
        (JobState.RUNNING, 2, ("failing", "it runs again after 2 failures")),
        (JobState.STARTING, 7, ("failing", "it starts again after 7 failures")),
    ],
)
def test_a_job_that_keeps_failing_is_failing_while_it_runs(
    state: JobState, failures: int, expected: tuple[str, str]
) -> None:
    assert shown(replace(RECORD, state=state, failures=failures), MINE) == expected


@pytest.mark.parametrize(
    ("retry_at", "apart", "reason"),
    [
        (112.0, False, "it backs off for 12 s more"),
        (112.0, True, "it backs off for 12 s more"),
        (99.0, False, "its next start is due"),
        (99.0, True, "it waits for a process of its own: see sticky_job_quarantine"),
    ],
)
def test_a_job_that_failed_says_what_it_waits_for(retry_at: float, apart: bool, reason: str) -> None:
    record = replace(RECORD, state=JobState.FAILING, failures=1, apart=apart)
    assert shown(record, MINE, 100.0, retry_at) == ("failing", reason)


# -- owners ----------------------------------------------------------------------------------------


def view_of(*names: str) -> View:
    view = changes.fresh(slots=4, hash="h", generation=1, version=1, store_id="s")
    for name in names:
        view = changes.join(view, Member(name, f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
    return replace(view, owner=("a", None, "a", "b"), target=("a", None, "b", "b"), epoch=(1, 1, 5, 6))


def owners(view: View | None, silent: Mapping[str, float] | None = None, **options: object) -> Owners:
    return Owners.read(Reading(view, {}, "s", 0.0, silent or {}), TTL, **options)  # type: ignore[arg-type]


def at(slot: int) -> JobRecord:
    return replace(RECORD, slot=slot)


def test_no_worker_is_alive_without_a_document_or_without_heartbeats() -> None:
    silent = {"a-1": TTL + 1, "b-1": TTL + 1}
    for found in (owners(None), owners(view_of()), owners(view_of("a", "b"), silent)):
        assert found.of(RECORD) == EMPTY
    assert owners(view_of("a"), {"a-1": TTL}).of(at(0)) == Place("slot", "a", "a", 1)
    assert owners(view_of("a"), {}).alive == {"a"}, "a driver may not know"


def test_the_place_of_a_slot() -> None:
    found = owners(view_of("a", "b"), {"a-1": 0.1, "b-1": TTL + 1})
    assert found.of(at(2)) == Place("slot", "a", "b", 5)
    assert found.of(at(1)).obstacle == "its slot has no owner yet"
    assert found.of(at(3)).obstacle == "b has its slot and sends no heartbeats: another worker will take it"
    assert found.of(at(4)).obstacle == "the keyspace has 4 slots: no worker reads its slot 4"


PLACED = Keyspace("placed", pins=True)
KEYED = replace(RECORD, slot=KeyPlace("k"))


def test_the_place_of_a_key() -> None:
    view, silent = view_of("a", "b"), {"a-1": 0.1, "b-1": 0.1}
    pinned = owners(view, silent, placed=PLACED, pins={"k": "b-1"})
    assert pinned.of(KEYED) == Place("key", "a", "b"), "it moves from a"
    assert pinned.of(replace(KEYED, worker="gone")) == Place("key", "b", "b")
    silent["b-1"] = TTL + 1
    assert pinned.of(KEYED).owner == "a"
    assert owners(view, silent, placed=PLACED, pins={"k": "b-1"}).of(KEYED).obstacle.startswith("b has its key and")
    refuses = owners(view, silent, placed=replace(PLACED, unpinned="refuse"), pins={})
    assert refuses.of(KEYED).obstacle == "key 'k' of keyspace 'placed' is pinned by no live worker"
    nobody = owners(replace(view, owner=(None,) * 4), silent, placed=PLACED, pins={})
    assert nobody.of(KEYED).obstacle == "its slot has no owner yet"


def test_jobs_of_keys_that_are_only_counted_are_with_their_workers_as_long_as_these_live() -> None:
    found = owners(view_of("a", "b"), {"a-1": 0.1, "b-1": TTL + 1}, placed=PLACED)
    assert shown(KEYED, found.of(KEYED)) == ("running", "")
    gone = replace(KEYED, worker="b")
    assert shown(gone, found.of(gone)) == ("waiting", "no live worker has started it")
    plain = owners(view_of("a"), {})
    assert plain.of(KEYED).obstacle.startswith("it was dispatched for a placed keyspace, and this is none")
