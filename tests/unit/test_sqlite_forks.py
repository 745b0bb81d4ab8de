"""A process with open SQLite files forks, and the child uses the same file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address, Database

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
INSERT = "INSERT INTO {queue} (queue, name) VALUES (%s, %s)"


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], Database]:
    """Makes connections to one file."""
    address = Address.parse(f"sqlite:///{tmp_path}/q.db")
    return lambda: Database(address, timeout=5.0, unavailable=BrokerUnavailable)


def child(work: Callable[[], None]) -> int:
    """Fork, do the work in the child, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_that_is_forked_in_the_middle_of_a_transaction_can_write(connect: Callable[[], Database]) -> None:
    began, end = threading.Event(), threading.Event()

    def write() -> None:
        with closing(connect()) as own, own.transaction() as inside:
            inside.run(INSERT, [1, b"parent"])
            began.set()
            end.wait(20)

    def insert() -> None:
        with closing(connect()) as own:
            own.run(INSERT, [2, b"child"])

    writer = threading.Thread(target=write)
    writer.start()
    assert began.wait(20)
    threading.Timer(0.2, end.set).start()
    assert child(insert) == 0
    writer.join(20)
    with closing(connect()) as own:
        assert own.rows("SELECT COUNT(*) FROM {queue}") == [(2,)]


def test_the_connections_of_a_process_that_forks_go_on(connect: Callable[[], Database]) -> None:
    with closing(connect()) as own, closing(connect()) as other:
        own.run(INSERT, [1, b"before"])
        other.rows("SELECT 1")
        assert child(lambda: None) == 0
        own.run(INSERT, [2, b"after"])
        assert other.rows("SELECT COUNT(*) FROM {queue}") == [(2,)]


def test_a_child_may_use_the_database_object_of_its_parent(connect: Callable[[], Database]) -> None:
    with closing(connect()) as own:
        own.run(INSERT, [1, b"parent"])
        assert child(lambda: assert_one(own)) == 0
        assert_one(own)


def assert_one(database: Database) -> None:
    assert database.rows("SELECT COUNT(*) FROM {queue}") == [(1,)]
