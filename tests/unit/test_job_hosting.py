"""The job host's supervisor: when a worker may take slots whose jobs its host is to run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_sticky.jobs.keeper import supervisor as hosting
from celery_sticky.jobs.keeper.process import HostProcess
from celery_sticky.jobs.keeper.supervisor import Supervisor
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Message, Ready, Unready
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.testing.processes import children


class FakeHost:
    """Runs nothing."""

    pid = 1

    def send(self, messages: Sequence[Message]) -> None:
        """Nothing."""

    def kill(self) -> None:
        """Nothing."""

    def close(self, timeout: float) -> None:
        """Nothing."""


def test_a_host_that_cannot_be_started_again_is_tried_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[Callable[[int], None]] = []
    failures = [OSError("no memory"), OSError("no memory")]

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        if exits and failures:
            raise failures.pop()
        exits.append(on_exit)
        return FakeHost()

    monkeypatch.setattr(hosting, "RETRY_FIRST", 0.001)
    monkeypatch.setattr(hosting, "RETRY_LAST", 0.001)
    supervisor = Supervisor(spawn, Lease({"default": 4}), Suspects())
    supervisor.start(())
    exits[0](-9)
    assert (len(exits), failures) == (2, [])
    supervisor.finish(0.0)


@pytest.mark.parametrize("killed", [True, False])
def test_jobs_are_not_blamed_for_a_host_that_was_killed_from_here(
    monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    exits: list[Callable[[int], None]] = []

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        exits.append(on_exit)
        return FakeHost()

    monkeypatch.setattr(hosting, "RETRY_FIRST", 0.001)
    suspects = Suspects()
    supervisor = Supervisor(spawn, Lease({"default": 4}), suspects)
    supervisor.start(())
    suspects.began(("default", "id"), boottime())
    if killed:
        supervisor.kill(1, "it does not stop")
    exits[0](-9)
    assert (suspects.charged(("default", "id")) is None) is killed
    supervisor.finish(0.0)


def test_a_host_that_loads_the_app_and_dies_is_soon_replaced_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[tuple[Callable[[Message], None], Callable[[int], None]]] = []
    pauses: list[float] = []

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        hosts.append((on_message, on_exit))
        return FakeHost()

    # Not `time.sleep` itself: threads of other tests may sleep too.
    monkeypatch.setattr(hosting, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    supervisor = Supervisor(spawn, Lease({"default": 4}), Suspects())
    supervisor.start(())
    for n in range(20):
        on_message, on_exit = hosts[n]
        if n < 10:
            on_message(Ready(()))
        on_exit(1)
    assert pauses[0] == hosting.RETRY_FIRST
    assert (max(pauses[:10]), pauses[-1]) == (hosting.LOADED_LAST, hosting.RETRY_LAST)
    supervisor.finish(0.0)


def test_a_host_that_cannot_load_the_app_is_told_with_the_error_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts: list[tuple[Callable[[Message], None], Callable[[int], None]]] = []

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        hosts.append((on_message, on_exit))
        return FakeHost()

    monkeypatch.setattr(hosting, "RETRY_FIRST", 0.001)
    supervisor = Supervisor(spawn, Lease({"default": 4}), Suspects())
    supervisor.start(())
    hosts[0][0](Unready("shop: ModuleNotFoundError: No module named 'crm'"))
    hosts[0][1](1)
    assert "has not loaded the app: shop: ModuleNotFoundError: No module named 'crm'" in caplog.text
    assert "sticky_job_app" in caplog.text
    hosts[1][1](-9)
    assert "has not loaded the app: it died first (exit status -9)" in caplog.text
    supervisor.finish(0.0)


@pytest.mark.parametrize("answer", ["ready", "exit"])
def test_a_worker_waits_until_its_host_has_loaded_the_app_or_failed_to(answer: str) -> None:
    answers: list[Callable[[], None]] = []

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        answers.append(lambda: on_message(Ready(("default/sync",))) if answer == "ready" else on_exit(1))
        return FakeHost()

    supervisor = Supervisor(spawn, Lease({"default": 4}), Suspects())
    supervisor.start(())
    supervisor.await_host(0.05)
    waiting = threading.Thread(target=supervisor.await_host, args=(60.0,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "nothing was said yet"
    threading.Thread(target=answers[0], daemon=True).start()
    waiting.join(20)
    assert not waiting.is_alive()
    supervisor.finish(0.0)


def test_a_program_that_cannot_be_started_leaves_no_reaper_behind(tmp_path: Path) -> None:
    before = children(os.getpid())
    lease = Lease({"default": 4})
    with pytest.raises(FileNotFoundError):
        HostProcess([str(tmp_path / "missing")], lease.descriptor, lambda _: None, lambda _: None)
    assert children(os.getpid()) == before
