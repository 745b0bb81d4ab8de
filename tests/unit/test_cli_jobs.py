"""`celery sticky jobs` against a job store in memory."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sticky import Job, Sticky
from celery_sticky.cli.main import sticky
from celery_sticky.drivers import open_job_store
from celery_sticky.stores.jobs import Report, RunResult


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


def settle(app: Any, result: RunResult, error: str = "") -> None:
    """Do what an owner would."""
    store = open_job_store(app.connection_for_write(), "tenants")
    for record in store.records():
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
