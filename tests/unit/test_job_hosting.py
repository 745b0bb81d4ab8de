"""The job host's supervisor: when a worker may take slots whose jobs its host is to run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from celery_sticky.jobs import hosting
from celery_sticky.jobs.hosting import Supervisor
from celery_sticky.jobs.process import HostProcess
from celery_sticky.jobs.wire import Message, Ready
from celery_sticky.testing.processes import children
from celery_sticky.worker.lease import Lease


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
    supervisor = Supervisor(spawn, Lease({"default": 4}))
    supervisor.start(())
    exits[0](-9)
    assert (len(exits), failures) == (2, [])
    supervisor.finish(0.0)


@pytest.mark.parametrize("answer", ["ready", "exit"])
def test_a_worker_waits_until_its_host_has_loaded_the_app_or_failed_to(answer: str) -> None:
    answers: list[Callable[[], None]] = []

    def spawn(on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        answers.append(lambda: on_message(Ready(("default/sync",))) if answer == "ready" else on_exit(1))
        return FakeHost()

    supervisor = Supervisor(spawn, Lease({"default": 4}))
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


def test_a_program_that_cannot_be_started_leaves_no_undertaker_behind(tmp_path: Path) -> None:
    before = children(os.getpid())
    lease = Lease({"default": 4})
    with pytest.raises(FileNotFoundError):
        HostProcess([str(tmp_path / "missing")], lease.descriptor, lambda _: None, lambda _: None)
    assert children(os.getpid()) == before
