"""The job host's supervisor: when a worker may take slots whose jobs its host is to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from celery_sticky.jobs.hosting import Supervisor
from celery_sticky.jobs.wire import Message, Ready
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
