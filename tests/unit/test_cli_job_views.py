"""What `jobs list`, `status` and `doctor` tell of jobs whose worker is gone, or that fail: on stores in memory."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sticky import Keyspace, Sticky
from celery_sticky.cli.main import sticky
from celery_sticky.drivers import open_job_store, open_placement_store, open_store
from celery_sticky.jobs.shown import NO_WORKER
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member
from celery_sticky.slots import KeyPlace
from celery_sticky.stores.jobs import JobStore, NewJob, Report, RunResult
from celery_sticky.stores.memory.jobs import memory_job_server
from celery_sticky.stores.memory.store import memory_server
from celery_sticky.stores.notes import FailedDelivery

EPOCH, SLOTS = 3, 8


class Scene:
    """An app, and what its workers have written."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.app = Celery("shop", broker=f"memory://{name}", set_as_current=False)
        self.app.conf.update(sticky_slots=SLOTS, sticky_lease_ttl=1.0, sticky_lease_margin=0.1)
        self.sticky = Sticky(self.app)
        self.at = self.app.connection_for_write()
        self.now = 1e9
        memory_server(name, "sticky").clock = memory_job_server(name, "sticky").clock = lambda: self.now
        self.jobs: JobStore = open_job_store(self.at, "default")

    def own(self, keyspace: str = "default", **columns: Any) -> None:
        """Write a document in which one worker owns every slot, and two are members."""
        store = open_store(self.at, keyspace)
        reading = store.read()
        view = changes.fresh(
            slots=SLOTS,
            hash=self.sticky.settings.hash_of(keyspace),
            generation=1,
            version=1 if reading.view is None else reading.view.version + 1,
            store_id=reading.store_id,
        )
        for name in ("a", "b"):
            view = changes.join(view, Member(name, f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
        mine = {"owner": ("a",) * SLOTS, "target": ("a",) * SLOTS, "epoch": (EPOCH,) * SLOTS}
        assert store.swap(reading.view, replace(view, **{**mine, **columns}))

    def job(self, key: str, *results: Report) -> None:
        """Dispatch a job, and report these results of runs as its owner would."""
        self.sticky.jobs.admit("sync", key, id=key)
        (record,) = self.jobs.records("sync", key)
        self.jobs.open(record.slot, EPOCH)
        for result in results:
            self.jobs.reserve(record.slot, EPOCH, "a", [key])
            self.jobs.settle(record.slot, EPOCH, [replace(result, id=key)], (), outcome_ttl=60)

    def shown(self) -> dict[str, tuple[str, str]]:
        return {info.key: (info.state, info.reason) for info in self.sticky.jobs.list()}

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(sticky, words, obj=CLIContext(self.app, True, None), catch_exceptions=False)

    def facts(self, *words: str, status: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.exit_code == status, done.output
        return json.loads(done.stdout)

    def alone(self) -> Any:
        """Return the facts that `status` has, of the jobs, and the problems with them."""
        return self.facts("status", "--timeout", "0.01", status=1)

    def wrongs(self) -> list[str]:
        return [text for text in self.findings() if "jobs" in text]

    def findings(self, level: str = "wrong") -> list[str]:
        found = self.facts("doctor", "--timeout", "0.01", status=1)["findings"]
        return [one["text"] for one in found if one["level"] == level]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("COLUMNS", "200")  # no text is broken
    made = Scene()
    yield made
    made.app.close()


RUNS = Report("", RunResult.STARTED)
FAILS = Report("", RunResult.FAILED, "OSError: refused", failures=1, pause=60.0)


def test_a_job_of_a_worker_that_is_gone_waits(scene: Scene) -> None:
    scene.job("t-1", RUNS)
    assert scene.shown() == {"t-1": ("waiting", NO_WORKER)}, "there is no document"
    scene.own()
    assert scene.shown() == {"t-1": ("running", "")}
    scene.now += 11
    assert scene.shown() == {"t-1": ("waiting", NO_WORKER)}
    info = scene.sticky.jobs.get("sync", "t-1")
    assert info is not None and (info.state, info.reason) == ("waiting", NO_WORKER)
    (one,) = scene.facts("jobs", "list")["jobs"]
    assert (one["state"], one["reason"]) == ("waiting", NO_WORKER)
    assert NO_WORKER in scene.run("jobs", "list").output
    assert NO_WORKER in scene.run("jobs", "get", "sync", "t-1").output


def test_a_job_in_a_slot_that_moves_says_so(scene: Scene) -> None:
    scene.own(target=("b",) * SLOTS)
    scene.job("t-1")
    moves = "its slot moves from a to b: a still has tasks or jobs of this slot"
    assert scene.shown() == {"t-1": ("waiting", moves)}


def test_a_job_that_fails_says_how_long_it_backs_off(scene: Scene) -> None:
    scene.own()
    scene.job("t-1", RUNS, FAILS)
    scene.now += 48
    open_store(scene.at, "default").heartbeat("a-1")
    assert scene.shown() == {"t-1": ("failing", "it backs off for 12 s more")}


def test_a_job_of_a_pinned_key_says_who_has_it(scene: Scene) -> None:
    scene.sticky.keyspace(Keyspace("placed", pins=True))
    scene.own("placed", owner=("a",) * SLOTS)
    store = open_job_store(scene.at, "placed")
    for key in ("t-1", "t-2"):
        scene.sticky.jobs.admit("sync", key, keyspace="placed")
    placement = open_placement_store(scene.at, "placed")
    placement.enlist("b", "b-1")
    placement.pin("b", "t-1", take=False)
    shown = {info.key: (info.state, info.reason) for info in scene.sticky.jobs.list(keyspace="placed")}
    assert shown == {
        "t-1": ("waiting", "b has its key and has not started it yet"),
        "t-2": ("waiting", "a has its key and has not started it yet"),
    }
    info = scene.sticky.jobs.get("sync", "t-1", keyspace="placed")
    assert info is not None and (info.state, info.reason) == shown["t-1"]
    place = KeyPlace("t-2")
    (record,) = store.records(key="t-2")
    store.open(place, 1)
    store.reserve(place, 1, "a", [record.id])
    store.settle(place, 1, [Report(record.id, RunResult.STARTED)], (), outcome_ttl=60)
    found = scene.sticky.jobs.get("sync", "t-2", keyspace="placed")
    assert found is not None and (found.state, found.reason) == ("running", "")
    jobs = {one["keyspace"]: one["jobs"] for one in scene.alone()["keyspaces"]}
    assert jobs["placed"]["without_worker"] == 2, "status asks members: these do not answer"


def test_keys_and_an_empty_list_do_not_read_the_document(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.job("t-1", RUNS)
    monkeypatch.delattr(type(open_store(scene.at, "default")), "read")
    assert scene.sticky.jobs.keys("sync") == {"t-1"}
    assert scene.sticky.jobs.list("other") == []


# -- status and doctor -----------------------------------------------------------------------------


def test_status_and_doctor_count_jobs_without_a_live_worker(scene: Scene) -> None:
    scene.job("t-1", RUNS)
    scene.job("t-2")
    text = "2 jobs (for example sync of key 't-1') do not run: no worker is alive: start a worker that takes part in it"
    found = scene.alone()
    assert found["problems"] == [f"keyspace default: {text}"]
    assert found["keyspaces"][0]["jobs"]["waiting"] == 2
    assert "jobs: 2 waiting" in scene.run("status", "--timeout", "0.01").output
    assert scene.wrongs() == [f"keyspace default: {text}"]


def test_status_and_doctor_count_jobs_that_fail(scene: Scene) -> None:
    scene.own()
    scene.job("t-1", RUNS, FAILS)
    scene.job("t-2", RUNS, replace(FAILS, failures=7, strikes=1, apart=True), RUNS)
    scene.job("t-3", RUNS, replace(FAILS, result=RunResult.GIVEN_UP))
    scene.job("t-4", RUNS)
    look = "`celery sticky jobs list` shows their errors"
    restart = f"{look}; fix them, then `celery sticky jobs restart NAME KEY` (or `jobs stop`)"
    assert scene.wrongs() == [
        "keyspace default: 1 jobs (for example sync of key 't-3') have failed and are not started again: " + restart,
        f"keyspace default: 2 jobs (for example sync of key 't-1') keep failing: {look}",
    ]
    apart = "keyspace default: 1 jobs (for example sync of key 't-2') run each in a process of their own"
    assert any(text.startswith(apart) for text in scene.findings("note"))
    assert scene.shown()["t-2"] == ("failing", "it runs again after 7 failures")
    jobs = scene.alone()["keyspaces"][0]["jobs"]
    assert (jobs["failed"], jobs["quarantined"], jobs["dead_notifications"]) == (1, 1, 0)


def test_dead_notifications_are_a_problem(scene: Scene) -> None:
    scene.own()
    scene.job("t-1", RUNS)
    scene.sticky.jobs.notify("sync", "t-1")
    (record,) = scene.jobs.records()
    (note,) = scene.jobs.look({record.slot: 0})[record.slot].notes
    scene.jobs.settle(record.slot, EPOCH, (), (), [FailedDelivery(note.id, 5, "no", dead=True)], outcome_ttl=60)
    (text,) = [text for text in scene.findings() if "notifications" in text]
    assert text.startswith("keyspace default: 1 notifications are dead: see `celery sticky jobs dead list`")
    found = scene.alone()
    assert text in found["problems"]
    assert found["keyspaces"][0]["jobs"]["dead_notifications"] == 1
    assert " · 1 dead notifications" in scene.run("status", "--timeout", "0.01").output


def test_jobs_that_run_are_no_problem(scene: Scene) -> None:
    scene.own()
    scene.job("t-1", RUNS)
    assert scene.facts("doctor", "--timeout", "0.01")["ok"]
    scene.now += 11
    assert "keyspace default: a does not answer and has sent no heartbeat for 11 s" in scene.findings()


def test_paused_jobs_need_no_worker(scene: Scene) -> None:
    scene.job("t-1")
    scene.sticky.jobs.pause("sync", "t-1")
    (found,) = scene.facts("status", "--timeout", "0.01")["keyspaces"]
    assert (found["jobs"]["paused"], found["jobs"]["without_worker"]) == (1, 0)


def test_status_still_tells_the_rest_if_jobs_cannot_be_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(type(scene.jobs), "counts", refuse)
    found = scene.alone()
    assert found["problems"] == ["jobs of keyspace default: OSError: no"]
    assert found["keyspaces"][0]["jobs"] is None
    assert "jobs: -" in scene.run("status", "--timeout", "0.01").output


def test_a_record_in_a_place_of_a_key_of_a_plain_keyspace_says_so(scene: Scene) -> None:
    scene.own()
    scene.jobs.admit(NewJob("sync", "t-1", KeyPlace("t-1"), "d1", b"1"), max_queued=9, outcome_ttl=60)
    (shown,) = scene.shown().values()
    assert shown == ("waiting", "it was dispatched for a placed keyspace, and this is none: see `celery sticky doctor`")
