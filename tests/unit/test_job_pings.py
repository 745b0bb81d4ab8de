"""The supervisor pings its host, and kills one that does nothing; the keepers learn which run is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from celery_sticky.jobs.keeper import supervisor as supervisors
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.supervisor import Supervisor
from celery_sticky.jobs.wire import Blocked, Message, Ping, Pong, Ready
from celery_sticky.membership.lease import Lease
from celery_sticky.testing.waiting import wait_until

BLOCKED = Blocked(7, "sync", "t-7", 30.0)
LEASE = Lease({"default": 4})


class OneHost:
    """A host and a keeper: what both are told, in order. `answers` says whether the host's loop turns."""

    pid, executed = 1, frozenset[int]()

    def __init__(self, answers: bool) -> None:
        self.told: list[Any] = []
        self._answers = answers
        self._on_message: Callable[[Message], None] = lambda _: None

    def spawn(self, name: str, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> OneHost:
        self._on_message = on_message
        return self

    def say(self, message: Message) -> None:
        self._on_message(message)

    def send(self, messages: Sequence[Message]) -> None:
        self.told.extend(messages)
        if self._answers:
            self.say(Pong())

    def kill(self) -> None:
        self.told.append("killed")

    def listen(self) -> None:
        """Nothing: it speaks when it is told to."""

    def close(self, timeout: float) -> None:
        """Nothing."""

    def heard(self, message: Message) -> None:
        self.told.append(message)

    def hosts_up(self, *, up: bool) -> None:
        """Nothing."""

    def host_started(self) -> None:
        """Nothing."""

    def host_ended(self, number: int, blame: Blame) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "STEP", 0.01)


def watched(host: OneHost, limit: float) -> Supervisor:
    supervisor = Supervisor(host.spawn, LEASE, watchdog=limit)
    supervisor.start([cast(Keeper, host)])
    return supervisor


def test_a_host_that_does_not_answer_is_killed_once_and_the_log_says_whose_fault_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = OneHost(answers=False)
    supervisor = watched(host, 0.1)
    host.say(Ready(()))
    host.say(BLOCKED)
    wait_until(lambda: "killed" in host.told)
    supervisor.finish(0.0)
    assert [told for told in host.told if told != Ping()] == ["killed"] and Ping() in host.told
    assert "job 'sync' of key 't-7' has blocked the event loop for 30 s (sticky_job_watchdog); killing" in caplog.text


def test_a_host_of_which_nothing_is_known_is_killed_and_nobody_is_to_blame(caplog: pytest.LogCaptureFixture) -> None:
    host = OneHost(answers=False)
    supervisor = watched(host, 0.1)
    host.say(Ready(()))
    wait_until(lambda: "killed" in host.told)
    supervisor.finish(0.0)
    assert {told for told in host.told if told != Ping()} == {"killed"}
    assert "the job host has not answered for 0 s (sticky_job_watchdog); killing" in caplog.text


@pytest.mark.parametrize(("answers", "loaded", "limit"), [(True, True, 0.1), (False, False, 0.1), (False, True, 0.0)])
def test_a_host_that_answers_or_still_loads_the_app_or_may_be_silent_is_not_killed(
    answers: bool, loaded: bool, limit: float
) -> None:
    host = OneHost(answers)
    supervisor = watched(host, limit)
    if loaded:
        host.say(Ready(()))
    if answers:
        wait_until(lambda: len(host.told) > 30)
    else:
        time.sleep(0.3)  # nothing happens
    supervisor.finish(0.0)
    assert "killed" not in host.told
