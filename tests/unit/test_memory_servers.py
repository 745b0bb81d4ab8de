"""The servers of memory stores: one of a name in a process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from celery_sticky.stores.in_process import Server
from celery_sticky.stores.memory.jobs import memory_job_server
from celery_sticky.stores.memory.store import memory_server


@pytest.mark.parametrize("ask", [memory_server, memory_job_server])
def test_threads_that_ask_for_a_server_at_once_get_the_same_one(
    ask: Callable[[str, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    together, make, name = threading.Barrier(2), Server.__init__, uuid.uuid4().hex
    found: list[object] = []

    def made_side_by_side(server: Server, empty: Callable[[], object]) -> None:  # type: ignore[type-arg]
        make(server, empty)
        together.wait(20)

    monkeypatch.setattr(Server, "__init__", made_side_by_side)
    threads = [threading.Thread(target=lambda: found.append(ask(name, "sticky"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] is found[1]
    monkeypatch.undo()
    assert ask(name, "sticky") is found[0]
