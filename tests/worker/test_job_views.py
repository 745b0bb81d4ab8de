"""What is shown of jobs of real workers: failing ones are counted, waiting ones say why, none runs without a worker."""

# Celery has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery.bin.base import CLIContext
from click.testing import CliRunner
from harness.jobs_fleet import JobsFleet
from harness.keyed_fleet import node

from celery_sticky.cli.main import sticky
from celery_sticky.testing.waiting import wait_until


def facts(made: JobsFleet, *words: str) -> tuple[int, Any]:
    """Return the exit status of a command, and what it has found."""
    done = CliRunner().invoke(sticky, [*words, "--json"], obj=CLIContext(made.app, True, None), catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)


def listed(made: JobsFleet, key: str) -> tuple[str, str]:
    """Return state and reason of a job as `jobs list` shows them."""
    status, found = facts(made, "jobs", "list")
    assert status == 0
    (one,) = [one for one in found["jobs"] if one["key"] == key]
    return one["state"], one["reason"]


def wrongs(made: JobsFleet) -> list[str]:
    """Return the problems that `status` has, with those of `doctor` that it lacks."""
    (one, found), (two, checked) = facts(made, "status"), facts(made, "doctor")
    texts = [finding["text"] for finding in checked["findings"] if finding["level"] == "wrong"]
    assert (one, two) == (int(bool(found["problems"])), int(bool(texts)))
    assert [text for text in found["problems"] if "jobs" in text] == [text for text in texts if "jobs" in text]
    return [text for text in texts if "jobs" in text]


def test_a_failing_job_is_counted_and_without_a_worker_no_job_runs(jobs_fleet: Callable[..., JobsFleet]) -> None:
    made = jobs_fleet()
    worker = made.worker("a")
    made.jobs.dispatch("sync", "good", timeout=20)
    assert listed(made, "good") == ("running", "")
    assert wrongs(made) == []
    made.jobs.admit("sync", "bad", {"raise": "no"})
    wait_until(lambda: made.infos()["bad"].failures >= 2, 30, "it keeps failing", 0.1)
    assert listed(made, "bad")[0] == "failing"
    (text,) = wrongs(made)
    assert text.startswith("keyspace default: 1 jobs (for example sync of key 'bad') keep failing")

    worker.kill_all()
    wait_until(lambda: listed(made, "good") == ("waiting", "no worker is alive"), 30, "the worker is silent", 0.2)
    assert any("2 jobs (for example" in text and "no worker is alive" in text for text in wrongs(made))


def test_a_job_in_a_slot_that_moves_runs_behind_a_task_of_another_key(jobs_fleet: Callable[..., JobsFleet]) -> None:
    made = jobs_fleet()
    made.workers_up("a", "b")
    (task_key,) = made.keys_of(made.wait_members("a", "b"), "a")
    made.wait_started(task_key, made.publish(task_key, 600.0))
    drain = ("drain", node("a"), "--timeout", "0")
    CliRunner().invoke(sticky, drain, obj=CLIContext(made.app, True, None), catch_exceptions=False)
    key = next(key for n in range(10_000) if made.slot_of(key := f"job-{n}") == made.slot_of(task_key))
    made.jobs.admit("sync", key)
    # Jobs stop last: until the task has ended, they start here. Before that, the reason says that the slot moves.
    wait_until(lambda: listed(made, key) == ("running", ""), 20, "it does not wait for the task", 0.1)
