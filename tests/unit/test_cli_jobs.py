"""`celery sticky jobs` against a job store in memory."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sticky import Job, Sticky
from celery_sticky.cli.main import sticky
from celery_sticky.drivers import open_job_store, open_store
from celery_sticky.keys import HASH_NAME
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member
from celery_sticky.slots import KeyPlace
from celery_sticky.stores.jobs import NewJob, Report, RunResult
from celery_sticky.stores.notes import FailedDelivery
from celery_sticky.testing.waiting import wait_until


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", broker=f"memory://{uuid.uuid4().hex}", set_as_current=False)
    made.conf.update(sticky_slots=8)
    wired = Sticky(made)

    @wired.job("sync", keyspace="tenants")
    async def sync(job: Job) -> None: ...

    yield made
    made.close()


def run(app: Any, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        sticky, ["jobs", *words], obj=CLIContext(app, True, None), input=answer, catch_exceptions=False
    )


def own(app: Any) -> None:
    """Write a document in which one worker owns every slot, under epoch 3."""
    store = open_store(app.connection_for_write(), "tenants")
    reading = store.read()
    if reading.view is None:
        view = changes.fresh(slots=8, hash=HASH_NAME, generation=1, version=1, store_id=reading.store_id)
        view = changes.join(view, Member("one@vm", "one-1"))
        owner = ("one@vm",) * 8
        store.swap(None, replace(view, owner=owner, target=owner, epoch=(3,) * 8))


def settle(app: Any, result: RunResult, error: str = "") -> None:
    """Do what an owner would."""
    own(app)
    store = open_job_store(app.connection_for_write(), "tenants")
    for record in wait_until(store.records):
        store.open(record.slot, 3)
        store.reserve(record.slot, 3, "one@vm", [record.id])
        store.settle(record.slot, 3, [Report(record.id, result, error)], (), outcome_ttl=60)


def test_a_job_is_dispatched_where_it_was_declared_and_seen(app: Any) -> None:
    timer = threading.Timer(0.1, settle, (app, RunResult.STARTED))
    timer.start()
    done = run(app, "dispatch", "sync", "t-7", "--payload", '{"n": 1}', "--timeout", "10")
    assert (done.exit_code, done.output.startswith("started, id ")) == (0, True), done.output
    (one,) = json.loads(run(app, "list", "--json").output)["jobs"]
    expected = {"name": "sync", "key": "t-7", "keyspace": "tenants", "state": "running", "worker": "one@vm", "epoch": 3}
    assert expected.items() <= one.items()
    assert one["payload"] == {"n": 1}
    shown = run(app, "list").output
    assert all(word in shown for word in ("sync", "t-7", "tenants", "running", "one@vm"))
    assert json.loads(run(app, "get", "sync", "t-7", "--json").output) == one
    assert '{"n": 1}' in run(app, "get", "sync", "t-7").output
    assert run(app, "list", "--name", "other").output == "no jobs\n"


def test_a_failed_start_is_told_in_one_line(app: Any) -> None:
    threading.Timer(0.1, settle, (app, RunResult.FAILED, "OSError: refused")).start()
    done = run(app, "dispatch", "sync", "t-7", "--timeout", "10")
    assert done.exit_code == 1
    assert done.output == "Error: job 'sync' of key 't-7' failed to start: OSError: refused\n"


def test_a_dispatch_that_timed_out_can_be_repeated(app: Any) -> None:
    done = run(app, "dispatch", "sync", "t-7", "--timeout", "0.01", "--id", "mine")
    assert done.exit_code == 1
    assert "id='mine'" in done.output
    settle(app, RunResult.STARTED)
    assert run(app, "dispatch", "sync", "t-7", "--id", "mine").output == "started, id mine\n"
    assert "already exists" in run(app, "dispatch", "sync", "t-7").output


def test_what_is_not_there_is_an_error(app: Any) -> None:
    for words in (("get",), ("stop",), ("notify",)):
        done = run(app, *words, "sync", "t-7")
        assert (done.exit_code, "there is no job 'sync' of key 't-7'" in done.output) == (1, True), done.output


def test_a_payload_that_is_no_json_is_an_error_with_its_remedy(app: Any) -> None:
    done = run(app, "notify", "sync", "t-7", "--payload", "hello")
    assert done.exit_code == 1
    assert """quote text inside the argument: '"text"'""" in done.output


def test_a_notification_and_a_stop(app: Any) -> None:
    run(app, "dispatch", "sync", "t-7", "--timeout", "0")
    assert run(app, "notify", "sync", "t-7", "--payload", "5").exit_code == 0
    store = open_job_store(app.connection_for_write(), "tenants")
    (record,) = store.records()
    (note,) = store.look({record.slot: 0})[record.slot].notes
    assert note.payload == b"5"
    assert run(app, "stop", "sync", "t-7", "--timeout", "5").exit_code == 0
    assert store.records() == [] or not store.records()


def test_a_keyspace_is_shut_down_when_it_was_confirmed_and_reopened(app: Any) -> None:
    run(app, "dispatch", "sync", "t-7", "--timeout", "0")
    assert run(app, "shutdown", "--keyspace", "tenants", answer="n\n").exit_code == 1
    assert json.loads(run(app, "list", "--json").output)["jobs"]
    done = run(app, "shutdown", "--keyspace", "tenants", "--yes")
    assert (done.exit_code, "are shut down" in done.output) == (0, True)
    assert "is shut down" in run(app, "dispatch", "sync", "t-7").output
    assert run(app, "reopen", "--keyspace", "tenants").exit_code == 0
    assert "did not start within 0 s" in run(app, "dispatch", "sync", "t-7", "--timeout", "0").output


# -- dead notifications ----------------------------------------------------------------------------


def bury(app: Any, *keys: str) -> list[str]:
    """Bury a notification of a job of each key; return their ids as the commands show them."""
    store = open_job_store(app.connection_for_write(), "tenants")
    for key in keys:
        run(app, "dispatch", "sync", key, "--timeout", "0")
        run(app, "notify", "sync", key, "--payload", '{"of": 1}')
        (record,) = store.records("sync", key)
        store.open(record.slot, 3)
        (note,) = store.look({record.slot: 0})[record.slot].notes
        store.settle(record.slot, 3, (), (), [FailedDelivery(note.id, 5, "OSError: bad", dead=True)], outcome_ttl=60)
    return [f"tenants/{dead.id}" for dead in store.dead_notes()]


def test_dead_notifications_are_listed_in_pages(app: Any) -> None:
    assert run(app, "dead", "list").output == "no dead notifications\n"
    ids = bury(app, "a", "b", "c")
    shown = run(app, "dead", "list", "--limit", "2").output
    assert all(word in shown for word in (*ids[:2], "sync", "OSError: bad", f"more follow: --after {ids[1]}"))
    assert ids[2] not in shown
    facts = json.loads(run(app, "dead", "list", "--after", ids[1], "--json").output)
    assert [one["id"] for one in facts["notifications"]] == ids[2:] and facts["more"] is False
    assert {"job": "sync", "key": "c", "keyspace": "tenants", "deliveries": 5}.items() <= facts["notifications"][
        0
    ].items()
    for words in (("--key", "b"), ("--name", "sync", "--key", "b", "--keyspace", "tenants")):
        (one,) = json.loads(run(app, "dead", "list", "--json", *words).output)["notifications"]
        assert one["id"] == ids[1]
    assert run(app, "dead", "list", "--name", "other").output == "no dead notifications\n"


def test_a_dead_notification_is_shown_with_its_payload(app: Any) -> None:
    (dead,) = bury(app, "a")
    for shown_as in (dead, dead.rpartition("/")[2]):
        assert json.loads(run(app, "dead", "show", shown_as, "--json").output)["payload"] == {"of": 1}
    assert '{"of": 1}' in run(app, "dead", "show", dead).output
    done = run(app, "dead", "show", "tenants/17")
    assert (done.exit_code, "see `celery sticky jobs dead list`" in done.output) == (1, True)


def test_dead_notifications_are_retried_and_dropped(app: Any) -> None:
    one, two, _ = bury(app, "a", "b", "c")
    assert run(app, "dead", "retry", one).output == f"{one} waits for its job again\n"
    run(app, "stop", "sync", "b")
    done = run(app, "dead", "retry", "--all")
    assert (done.exit_code, f"✗ {two} stays dead: there is no job 'sync' of key 'b'" in done.output) == (1, True)
    assert run(app, "dead", "drop", two).output == f"dropped: {two}\n"
    assert run(app, "dead", "drop", "--all").output == "dropped: nothing\n"
    assert run(app, "dead", "retry", "--all").output == "no dead notifications\n"
    assert run(app, "dead", "drop").exit_code == 2


def test_a_job_is_updated_restarted_paused_and_resumed(app: Any) -> None:
    run(app, "dispatch", "sync", "t-7", "--timeout", "0")
    settle(app, RunResult.STARTED)
    assert run(app, "update", "sync", "t-7", "--payload", "[2]", "--no-restart").exit_code == 0
    assert run(app, "restart", "sync", "t-7").exit_code == 0
    done = run(app, "pause", "sync", "t-7", "--timeout", "0.01")
    assert (done.exit_code, "1 jobs are left" in done.output) == (1, True), done.output
    store = open_job_store(app.connection_for_write(), "tenants")
    (record,) = store.records()
    assert (record.payload, record.generation, record.state.value) == (b"[2]", 1, "pausing")
    store.settle(record.slot, 3, [Report(record.id, RunResult.PAUSED)], (), outcome_ttl=60)
    assert run(app, "pause", "sync", "t-7", "--timeout", "10").exit_code == 0
    assert json.loads(run(app, "get", "sync", "t-7", "--json").output)["state"] == "paused"
    assert run(app, "resume", "sync", "t-7").exit_code == 0
    assert json.loads(run(app, "get", "sync", "t-7", "--json").output)["state"] == "waiting"
    for verb in ("restart", "pause", "resume"):
        done = run(app, verb, "sync", "t-8")
        assert (done.exit_code, "there is no job 'sync' of key 't-8'" in done.output) == (1, True), done.output


def test_jobs_that_no_worker_finds_are_forgotten_when_it_was_confirmed(app: Any) -> None:
    store = open_job_store(app.connection_for_write(), "tenants")
    store.admit(NewJob("sync", "t-7", KeyPlace("t-7"), "d1", b"1"), max_queued=9, outcome_ttl=60)
    assert run(app, "forget", "--keyspace", "tenants", answer="n\n").exit_code == 1
    done = run(app, "forget", "--keyspace", "tenants", "--yes")
    assert (done.exit_code, done.output) == (0, "1 jobs of keyspace tenants are removed\n")
    assert not store.records()
