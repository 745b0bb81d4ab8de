"""A real job host: what it answers to starts, notifications and stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from harness.host import TestHost, settle

from celery_sticky.jobs.wire import (
    Call,
    Calls,
    Ended,
    Failed,
    Message,
    Noted,
    Ready,
    Start,
    Started,
    Unhandled,
    Waits,
    Yielded,
)
from celery_sticky.testing import processes
from celery_sticky.testing.waiting import wait_until


def test_it_says_first_which_jobs_it_can_run(host: TestHost) -> None:
    ready = host.wait_ready()
    assert "default/listen" in ready.names and not [name for name in ready.names if "elsewhere" in name]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("listen", ["begins", "hears:1", "hears:2", "stops"]),
        ("plain", ["begins", "hears:1", "hears:2", "stops"]),
        ("sync", ["starts", "takes:1", "took:1", "takes:2", "took:2", "stops"]),
        ("async", ["starts", "takes:1", "took:1", "takes:2", "took:2", "stops"]),
    ],
)
def test_a_job_starts_takes_notifications_in_order_and_stops(host: TestHost, name: str, lines: list[str]) -> None:
    ref = host.started(name, "k1", {})
    host.notify(ref, 1, 2)
    host.wait(ref, Started(ref), Noted(ref, "1"), Noted(ref, "2"))
    host.wait_log(rf"{lines[-2]} k1")
    host.stop(ref)
    host.wait(ref, Ended(ref))
    assert host.log() == [f"{line} k1" for line in lines]


def test_jobs_whose_start_or_stop_raises_are_told_and_harm_no_other(host: TestHost) -> None:
    lives = host.started("listen", "lives")
    for payload, error in [(None, "LookupError"), ("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")]:
        assert host.wait_over(ref := host.start("fail", "k", payload)) == Failed(ref, f"{error}: no luck")
    later = host.start("fail", "k", "later")
    host.wait(later, Started(later), Ended(later, "LookupError: no luck"))
    for name in ("sync", "async"):
        ref = host.start(name, "k", {"fails": "start"})
        assert host.wait_over(ref) == Failed(ref, "ConnectionError: no connection")
        ref = host.started(name, "k", {"fails": "stop"})
        host.stop(ref)
        assert host.wait_over(ref) == Ended(ref, "OSError: left open")
    host.notify(lives, "still")
    host.wait_log("hears:still lives")


def test_a_job_it_does_not_know_fails_and_the_known_ones_are_named(host: TestHost) -> None:
    for keyspace, name in (("default", "lisen"), ("second", "listen")):
        failed = host.wait_over(ref := host.start(name, keyspace=keyspace))
        assert failed == Failed(ref, failed.error) and f"{keyspace}/{name} " in failed.error
        assert "default/listen" in failed.error


def test_a_stop_during_a_start_cancels_a_coroutine_and_waits_for_a_method(host: TestHost) -> None:
    slow, sync = host.start("slow", "slow"), host.start("sync", "sync", {"pause": 0.3})
    host.wait_log("begins slow")
    host.wait_log("starts sync")
    host.stop(slow, sync)
    host.wait_over(slow)
    host.wait_over(sync)
    assert host.by_ref[slow] == [Ended(slow)]
    assert host.by_ref[sync] == [Waits(sync, Call.STOP), Started(sync), Calls(sync, Call.STOP), Ended(sync)]


def test_what_has_crossed_the_end_of_a_run_is_passed_over(host: TestHost, tmp_path: Path) -> None:
    ref = host.started("idle")
    host.stop(ref, ref)
    host.wait(ref, Ended(ref))
    host.stop(ref)
    host.notify(ref, 1)
    other = host.started("idle")
    assert host.by_ref[ref] == [Started(ref), Ended(ref)] and host.by_ref[other] == [Started(other)]
    assert not (tmp_path / "w1.log").read_text()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b'{"say":"Stop"}',
        b'{"say":"Dance","ref":1}',
        b'{"say":"Stop","ref":[]}',
        b'{"say":"Ready","names":[]}',
        b"[" * 100000,
    ],
)
def test_a_line_it_cannot_read_is_logged_and_ignored(host: TestHost, line: bytes, tmp_path: Path) -> None:
    host.process._says.put(line + b"\n")
    host.started("idle")
    assert "ignored an invalid message" in (tmp_path / "w1.log").read_text()


def test_a_ref_that_runs_is_not_started_again(host: TestHost) -> None:
    order = host.order("listen", "k1")
    host.process.send([order, Start(order.ref, "listen", "k2", "default", "id", 1, 1, None, 1)])
    host.started("idle")
    assert host.by_ref[order.ref] == [Started(order.ref)] and host.log() == ["begins k1"]


@pytest.mark.parametrize("payload", ["leaves", None], ids=["a task raises SystemExit", "the loop is stopped"])
def test_what_a_job_does_to_the_loop_does_not_end_the_host(host: TestHost, payload: str | None) -> None:
    lives = host.started("listen", "lives")
    host.started("stray", "stray", payload)
    host.notify(lives, "still")
    host.wait_log("hears:still lives")


# -- the process -----------------------------------------------------------------------------------


def test_a_job_fails_with_a_task_whose_error_nobody_looks_at_and_its_other_tasks_end(host: TestHost) -> None:
    ref = host.started("family", "k1")
    host.notify(ref, *range(10), "bad", *range(10, 20))
    error = "a task that it created raised LookupError: cannot take it"
    assert host.wait_over(ref) == Ended(ref, error)
    assert host.log() == ["child ends k1"] * 2
    unhandled = [message.note for message in host.by_ref[ref] if isinstance(message, Unhandled)]
    assert "bad" in unhandled and "bad" not in host.noted(ref)
    assert set(host.noted(ref)) >= set(map(str, range(9)))
    other = host.started("family", "k2")
    host.stop(other)
    assert host.wait_over(other) == Ended(other)
    assert host.log()[2:] == ["child ends k2"] * 2


def test_signals_are_left_to_the_worker_and_what_jobs_start_heeds_them(host: TestHost) -> None:
    ref = host.started("spawn")
    host.wait_log(r"forked:(\d+) k")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        os.kill(host.process.pid, number)
    host.notify(ref, "end them")
    host.wait_log(r"ended:-15:-15 k")


def test_what_jobs_start_has_neither_the_socket_nor_the_lease(host: TestHost) -> None:
    host.started("spawn")
    pid = int(host.wait_log(r"program:(\d+) k")[1])
    opened = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # what it opened as it began, it may have closed
            opened.append(os.readlink(entry))
    assert opened and not [name for name in opened if "socket" in name or "lease" in name], opened


def test_it_leads_a_process_group_and_reads_nothing(host: TestHost) -> None:
    host.wait_ready()
    assert os.getpgid(host.process.pid) == host.process.pid
    assert os.readlink(f"/proc/{host.process.pid}/fd/0") == os.devnull


def test_it_logs_as_the_worker_does(host: TestHost, tmp_path: Path) -> None:
    ref = host.started("listen", "k1")
    host.notify(ref, "that")
    wait_until(lambda: "WARNING/JobHost] listen[k1]: hears that" in (tmp_path / "w1.log").read_text(), 30)


def test_an_app_that_cannot_be_loaded_ends_it_with_status_1_and_the_reason(
    make_host: Callable[..., TestHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app.py").write_text("raise SystemExit('no settings here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert make_host(app="broken_app").wait_exit() == 1
    log = (tmp_path / "w1.log").read_text()
    assert "broken_app" in log and "no settings here" in log and "Traceback" in log


def test_what_it_said_before_it_died_is_heard_before_its_end(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.wait_ready()
    listens, hear = threading.Event(), host.process._on_message

    def wait_and_hear(message: Message) -> None:
        assert listens.wait(30)
        hear(message)

    monkeypatch.setattr(host.process, "_on_message", wait_and_hear)
    refs = [host.start("listen", f"k{number}") for number in range(500)]
    host.wait_log("begins k499")
    host.start("crash")
    assert processes.wait_gone([host.process.pid], 10)
    settle()
    listens.set()
    assert host.wait_exit() == 7
    assert host.events[1:] == [*(Started(ref) for ref in refs), 7]


def test_what_jobs_have_started_dies_with_a_host_that_crashes(host: TestHost) -> None:
    host.started("spawn")
    children = [int(host.wait_log(rf"{what}:(\d+) k")[1]) for what in ("program", "forked")]
    host.start("crash")
    assert host.wait_exit() == 7
    assert len(processes.wait_gone(children, 10)) == 2


def test_a_hung_up_idle_host_ends_with_status_0(host: TestHost) -> None:
    ref = host.started("idle")
    host.stop(ref)
    host.wait(ref, Ended(ref))
    host.process.close(30)
    assert host.wait_exit() == 0
    ours = (host.process.pid, host.process._reaper)
    assert not [pid for pid in ours if processes.stat(pid)], "both are reaped"


def test_a_hung_up_host_that_runs_something_dies_with_all_that_it_started(host: TestHost) -> None:
    host.started("spawn")
    children = [int(host.wait_log(rf"{what}:(\d+) k")[1]) for what in ("program", "forked")]
    began = time.monotonic()
    host.process.close(60)
    assert host.wait_exit() == -signal.SIGKILL and time.monotonic() - began < 30, "by itself"
    assert len(processes.wait_gone(children, 10)) == 2


def test_a_frozen_host_keeps_nobody_waiting_and_is_killed_when_it_does_not_hang_up(host: TestHost) -> None:
    ref = host.started("quiet")
    os.kill(host.process.pid, signal.SIGSTOP)
    host.notify(ref, *("x" * 100_000 for _ in range(100)))
    host.process.close(0.2)
    assert host.wait_exit() == -signal.SIGKILL


@pytest.mark.parametrize("times", [1, 2])
def test_a_coroutine_that_swallows_its_cancellation_is_cancelled_again(host: TestHost, times: int) -> None:
    ref = host.started("stubborn", "k", times)
    host.stop(ref)
    host.wait(ref, Started(ref), Ended(ref))
    assert host.log() == ["goes on k"] * times


def test_a_coroutine_that_swallows_every_cancellation_is_ended_with_the_host(host: TestHost) -> None:
    ref = host.started("stubborn")
    host.stop(ref)
    host.wait_log("goes on k")
    host.process.kill()
    assert host.wait_exit() == -signal.SIGKILL and host.by_ref[ref] == [Started(ref)]


# -- trust -----------------------------------------------------------------------------------------


def test_at_the_end_of_trust_it_dies_also_when_its_loop_is_blocked(host: TestHost) -> None:
    host.started("block")
    host.wait_log("blocks k")
    settle()
    assert processes.running(host.process.pid), "while it is trusted"
    host.grant(-1)
    assert host.wait_exit(5) == -signal.SIGKILL


def test_at_the_end_of_trust_an_idle_host_lives_on_and_runs_what_is_trusted_later(host: TestHost) -> None:
    ref = host.started("idle")
    host.stop(ref)
    host.wait(ref, Ended(ref))
    host.grant(-1)
    settle()
    host.lease.grant("default", host.lease.until("default") + 600, 2)
    ref = host.start("idle", membership=2)
    host.wait(ref, Started(ref))


def test_what_is_not_trusted_is_not_begun(host: TestHost) -> None:
    host.wait_ready()
    host.start("listen", membership=2)
    assert host.wait_exit() == -signal.SIGKILL and host.log() == []


def test_the_end_of_one_membership_counts_while_another_one_lasts(host: TestHost) -> None:
    host.started("block")
    host.wait_log("blocks k")
    host.lease.grant("default", host.lease.until("default"), 2)
    assert host.wait_exit(5) == -signal.SIGKILL


def test_what_stops_by_itself_while_its_trust_ends_is_told_so_and_what_comes_later_runs(host: TestHost) -> None:
    ref = host.started("idle")
    host.grant(1.0)  # less than what a host leaves for stops
    host.wait(ref, Yielded(ref))
    host.lease.grant("default", host.lease.until("default") + 600, 2)
    ref = host.start("idle", membership=2)
    host.wait(ref, Started(ref))


def test_ready_is_said_before_all_else(host: TestHost) -> None:
    host.started("idle")
    assert isinstance(host.events[0], Ready)
