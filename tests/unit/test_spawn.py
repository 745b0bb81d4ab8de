"""Programs started by the system's own calls."""

from __future__ import annotations

import os
import sys

import pytest

from celery_sticky.platform.spawn import UNKNOWN_STATUS, reap, spawn
from celery_sticky.testing.processes import stat

SAY = "import os, sys; os.write(5, f'{os.getpgrp()} {os.getsid(0)} {sys.stdin.read()!r}'.encode()); sys.exit(3)"


def nothing() -> None:
    """Nothing is left to do."""


@pytest.mark.parametrize("session", [False, True])
def test_a_program_leads_its_group_has_its_descriptors_and_tells_its_status(session: bool) -> None:
    ours, theirs = os.pipe()
    pid = spawn([sys.executable, "-c", SAY], {5: theirs}, session=session)
    os.close(theirs)
    said = os.read(ours, 1000).decode().split()
    os.close(ours)
    assert reap(pid, nothing) == 3
    assert said == [str(pid), str(pid if session else os.getsid(0)), "''"]


def test_descriptors_may_have_each_others_numbers() -> None:
    pipes = [os.pipe(), os.pipe()]
    first, second = pipes[0][1], pipes[1][1]
    say = f"import os; os.write({first}, b'first'); os.write({second}, b'second')"
    pid = spawn([sys.executable, "-c", say], {first: second, second: first})
    assert reap(pid, nothing) == 0
    assert [os.read(ours, 100) for ours, _ in pipes] == [b"second", b"first"]
    for end in (*pipes[0], *pipes[1]):
        os.close(end)


def test_the_last_call_comes_while_the_id_is_still_that_of_the_dead() -> None:
    pid = spawn([sys.executable, "-c", ""], {})
    states: list[str | None] = []

    def look() -> None:
        found = stat(pid)
        states.append(found.state if found else None)

    assert reap(pid, look) == 0
    assert states[0] == "Z"


def test_a_program_that_somebody_else_has_reaped_has_ended_all_the_same() -> None:
    pid = spawn([sys.executable, "-c", ""], {})
    os.waitpid(pid, 0)
    calls: list[int] = []
    assert reap(pid, lambda: calls.append(1)) == UNKNOWN_STATUS
    assert calls


def test_a_platform_without_waitid_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    calls: list[int] = []
    assert reap(spawn([sys.executable, "-c", "raise SystemExit(4)"], {}), lambda: calls.append(1)) == 4
    assert calls


def test_a_program_that_is_not_there_cannot_be_started() -> None:
    with pytest.raises(OSError, match="No such file"):
        spawn(["/no/such/program"], {})
