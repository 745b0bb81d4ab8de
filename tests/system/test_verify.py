"""`celery sticky verify`: clean on celery-sticky, against plain Celery, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis
from harness.traces import processes_of

from celery_sticky.cli.verify.app import ATTEMPTS
from celery_sticky.testing.waiting import wait_until

COMMAND = [sys.executable, "-m", "celery", "sticky", "verify"]
MUTANTS = Path(__file__).parent / "mutants"
SMALL = ["--workers", "3", "--rate", "25", "--keys", "60", "--jobs", "12", "--seed", "7"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where verify puts its own temporary folders."""
    with tempfile.TemporaryDirectory(prefix="v-") as made:
        yield Path(made)


def run(folder: Path, *words: str, **environ_too: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "100", **environ_too}
    return subprocess.run(
        [*COMMAND, *words], env=environ, capture_output=True, text=True, timeout=170, check=False, cwd=folder
    )


def without(rule: str) -> str:
    """Return a path of Python on which workers do without a rule."""
    return os.pathsep.join(filter(None, (str(MUTANTS / rule), os.environ.get("PYTHONPATH"))))


def left_behind(folder: Path) -> list[object]:
    return [*processes_of(folder), *(path for path in folder.iterdir() if path.name.startswith("sticky-"))]


@pytest.mark.timeout(180)
def test_a_short_run_is_clean_and_says_so_in_every_form(folder: Path) -> None:
    faults = "kill,cascade,stop,child-kill,oom,store-rollback,broker-restart,partition,burst,eta,retry,raise"
    files = ["--json", "found.json", "--picture", "slots.svg"]
    done = run(folder, "--seconds", "20", "--faults", faults, *SMALL, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout and "✗" not in done.stdout and "kill w" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    assert {fault["fault"] for fault in found["faults"]} | {*found["faults_mixed_in"]} >= set(faults.split(","))
    findings = found["findings"]
    assert findings["tasks"] > 300
    assert [findings[name] for name in ("lost", "overlaps", "out_of_order", "stale_epoch", "stuck")] == [0] * 5
    # One start may die, with its worker, before it is written down.
    assert findings["duplicates"]["poison"] in (ATTEMPTS - 1, ATTEMPTS - 2) and len(found["buried"]) == 1
    jobs = findings["jobs"]
    assert found["figures"]["jobs"]["bad_jobs"] > 9 and found["figures"]["jobs"]["notes"] > 20
    assert jobs.pop("wanted") == 12 and jobs.pop("zombie_overlaps") >= 0 and set(jobs.values()) == {0}
    moves = found["figures"]["jobs"]
    assert moves["starts"] == moves["starts_minimum"] > 12
    assert {"dispatch", "kill", "cascade"} <= set(moves["not_running_seconds"])
    assert found["figures"]["takeover_seconds"]["p50"] > 0 and found["seed"] == 7
    assert (folder / "slots.svg").read_text().count("<path") > 20
    assert not left_behind(folder)


@pytest.mark.timeout(180)
def test_a_sentinel_that_promotes_a_replica_breaks_no_promise_and_isolated_bad_jobs_hurt_nobody(folder: Path) -> None:
    done = run(
        folder, "--isolated", "--seconds", "12", "--faults", "failover,kill,retry", *SMALL, "--json", "found.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "found.json").read_text())
    assert found["ok"] and "failover" in {fault["fault"] for fault in found["faults"]}
    jobs = found["figures"]["jobs"]
    assert jobs["bad_starts"] > 12 and jobs["first_offences"] == 0, "no bad job had company"


ON_SQL = ["--workers", "2", "--rate", "20", "--keys", "40", "--jobs", "0", "-P", "threads", "--seconds", "8"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("server", "faults"),
    [
        (["sqlite", "--one-server"], "kill,lock,open-transaction,eta,retry"),
        (
            ["postgresql"],
            "kill,disconnect,deadlock,read-only,broker-rollback,open-transaction,eta,retry",
        ),
    ],
    ids=["sqlite", "postgresql"],
)
def test_faults_of_a_database_break_no_promise(folder: Path, server: list[str], faults: str) -> None:
    done = run(folder, *ON_SQL, "--server", *server, "--faults", faults, "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"on {server[0]}" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    assert {fault["fault"] for fault in found["faults"]} | {*found["faults_mixed_in"]} == set(faults.split(","))
    assert found["ok"] and found["options"]["server"] == server[0] and not found["faults_left_out"]
    assert not left_behind(folder)


def test_on_ones_own_database_it_leaves_no_table(folder: Path) -> None:
    own = folder / "own.db"
    with closing(sqlite3.connect(own)) as database:
        database.execute("CREATE TABLE of_somebody_else (id INTEGER)")
    words = ["--faults", "term,lock", "--broker", f"sticky+sqlite:///{own}"]
    done = run(folder, *ON_SQL, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out: lock: it needs a broker that verify started itself" in done.stdout
    with closing(sqlite3.connect(own)) as database:
        left = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'sticky%'")}
        assert not left and database.execute("SELECT COUNT(*) FROM of_somebody_else").fetchone() == (0,)


def test_jobs_that_go_on_when_their_slot_is_given_away_are_found_to_overlap(folder: Path) -> None:
    words = ["--seconds", "8", "--faults", "term", *SMALL, "--json", "-"]
    done = run(folder, *words, PYTHONPATH=without("jobs_are_left_behind"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"]["jobs"]["overlaps"] > 0
    assert re.search(r"job overlap: j\d+ \(\w+\) on w\d pid \d+ epoch \d+ at .* and j\d+ ", done.stderr)
    assert not left_behind(folder)


def test_jobs_that_start_late_for_no_reason_are_found_out(folder: Path) -> None:
    words = ["--seconds", "8", "--faults", "kill", *SMALL, "--json", "-"]
    done = run(folder, *words, PYTHONPATH=without("jobs_start_late"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"]["jobs"]["late"] > 0
    assert re.search(r"job late: j\d+ .*: kill; .* s are allowed", done.stderr)
    assert not left_behind(folder)


def test_bad_jobs_that_stay_among_good_ones_are_found_to_restart_them(folder: Path) -> None:
    words = ["--seconds", "8", "--faults", "none", *SMALL, "--json", "-"]
    done = run(folder, *words, PYTHONPATH=without("bad_jobs_stay"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"]["jobs"]["needless_starts"] > 0
    assert "job started without need: j" in done.stderr


@pytest.mark.timeout(180)
def test_placed_keys_move_with_members_and_pins_and_no_promise_is_broken(folder: Path) -> None:
    faults = "kill,term,partition,eta,retry,raise"
    done = run(folder, "--placed", "jump", "--seconds", "15", "--faults", faults, *SMALL, "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean" in done.stdout and "✗" not in done.stdout and "placed keyspace (jump)" in done.stdout
    found = json.loads((folder / "found.json").read_text())
    placed = found["findings"]["placed"]
    assert placed["changes"] > 20, "pins of single keys, and members"
    # An eviction follows 3.81 s after the last heartbeat (lease and margin). That was up to 1 s old at the kill, or a
    # little more where a heartbeat came late.
    assert found["figures"]["jobs"]["not_running_seconds"]["kill"]["max"] > 2.5
    assert not left_behind(folder)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("rule", "figure"), [("keys_run_unclaimed", "stale_epoch"), ("keys_run_where_they_are", "astray")]
)
def test_placed_keys_without_their_rules_are_found_out(folder: Path, rule: str, figure: str) -> None:
    # Of this seed a burst of 400 comes first, so that tasks of all these few keys wait when they move.
    few = ["--keys", "8", "--seed", "13", "--jobs", "0"]
    words = ["--seconds", "5", "--faults", "term,burst", *SMALL, *few, "--json", "-"]
    done = run(folder, "--placed", "jump", *words, PYTHONPATH=without(rule))
    assert done.returncode == 1, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert (findings | findings["placed"])[figure] > 0
    assert not left_behind(folder)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_backend_that_is_away_and_messages_that_nobody_can_read_harm_nobody(folder: Path, pool: str) -> None:
    faults = "backend-away,malformed,eta,retry,raise"
    done = run(folder, "-P", pool, "--seconds", "10", "--faults", faults, *SMALL, "--json", "found.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "found.json").read_text())
    (sent,) = [fault["messages"] for fault in found["faults"] if fault["fault"] == "malformed"][:1]
    assert found["findings"]["duplicates"] == {} and len(found["buried"]) >= sent / 2
    assert not left_behind(folder)


@pytest.mark.timeout(180)
def test_tasks_that_run_again_because_their_result_was_not_stored_are_found_out(folder: Path) -> None:
    words = ["-P", "threads", "--seconds", "8", "--faults", "backend-away", *SMALL, "--json", "-"]
    done = run(folder, *words, PYTHONPATH=without("traces_are_not_guarded"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"]["duplicates"]["unexplained"] > 0
    assert not left_behind(folder)


@pytest.mark.timeout(180)
def test_plain_celery_breaks_promises_under_the_same_load_and_faults(folder: Path) -> None:
    # Of this seed a burst comes before the kill, so that the worker holds some messages.
    words = ["--stock", "--seconds", "8", "--faults", "term,kill,burst", *SMALL, "--seed", "9", "--json", "-"]
    done = run(folder, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {one["mode"]: one["findings"] for one in json.loads(done.stdout)["stock"]}
    assert found["queue"]["overlaps"] > 0 and found["queue"]["out_of_order"] > 0
    assert found["hash"]["out_of_order"] + found["hash"]["stuck"] + found["hash"]["lost"] > 0
    assert "broken promises" in done.stderr
    assert not left_behind(folder)


def test_on_ones_own_redis_it_leaves_no_key(redis_url: str, folder: Path) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.set("of-somebody-else", "1")
        before = set(client.keys())
        done = run(folder, "--seconds", "5", "--faults", "term,broker-freeze", *SMALL, "--broker", redis_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(client.keys()) == before
    assert "left out: broker-freeze: it needs a broker that verify started itself" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_nothing_is_left_behind(folder: Path, number: int) -> None:
    environ = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    words = [*COMMAND, "--faults", "stop", *SMALL]
    # A shell that runs the tests in its background has Ctrl-C ignored by all of them, and verify keeps to that.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    verify = subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heeding
    )
    assert verify.stdout is not None
    with verify.stdout:
        wait_until(lambda: "stop w" in str(verify.stdout and verify.stdout.readline()), 60, "a worker is frozen", 0)
        assert len(processes_of(folder)) > 8, "verify, its guard, two servers, two senders, three workers"
        verify.send_signal(number)
        assert verify.wait(timeout=40) == (-number if number == signal.SIGKILL else 2)
    wait_until(lambda: not left_behind(folder), 20, "nothing is left behind")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--faults", "kill,boom"], "--faults"),
        (["--workers", "1"], "--workers"),
        (["--seconds", "soon"], "--seconds"),
        (["--picture", "slots.pdf"], "--picture"),
        (["-P", "processes"], "--pool"),
        (["--broker", "redis://127.0.0.1:1/0", "--faults", "none"], "127.0.0.1:1"),
        (["--broker", "amqp://127.0.0.1:1//", "--faults", "none"], "amqp"),
        (["--broker", "sticky+postgresql://127.0.0.1:1/db", "--faults", "none"], "127.0.0.1:1"),
        (["--broker", "redis://127.0.0.1:1/0", "--server", "sqlite"], "--server"),
        (["--broker", "redis://127.0.0.1:1/0", "--one-server"], "--one-server"),
        (["--stock", "--server", "sqlite"], "--stock"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line_with_status_2(folder: Path, words: list[str], named: str) -> None:
    done = run(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and not left_behind(folder)
