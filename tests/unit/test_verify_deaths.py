from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

from celery_sticky.cli.verify.faults.deployments import Leave
from celery_sticky.cli.verify.nemesis import Nemesis
from celery_sticky.cli.verify.timeline import Done

PROMPT = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, b"x")
signal.sigwait([signal.SIGTERM])
"""
SLOW = f"""{PROMPT}
while os.path.exists(f"/proc/{{sys.argv[1]}}/exe"):
    time.sleep(0.01)
time.sleep(0.3)
"""


class Ending:
    """A process in place of a worker; the nemesis sees the same of it."""

    def __init__(self, name: str, code: str, *arguments: str) -> None:
        self.name = name
        self.deaths: dict[int, int] = {}
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        with self.process.stdout as output:
            assert output.read(1) == b"x", "it did not start"

    @property
    def processes(self) -> list[int]:
        return [self.process.pid]

    def kill(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait_ended(self, timeout: float) -> bool:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def test_each_of_several_workers_that_stop_at_once_is_dead_when_it_ended_not_when_the_slowest_had() -> None:
    prompt = Ending("prompt", PROMPT)
    slow = Ending("slow", SLOW, str(prompt.process.pid))
    workers = {"slow": slow, "prompt": prompt}
    nemesis = Nemesis.__new__(Nemesis)
    nemesis.cluster = cast(Any, SimpleNamespace(retire=workers.pop))
    done = Done(Leave(workers=("slow", "prompt")), since=0)

    nemesis.end(["slow", "prompt"], done)

    [ended], [last] = prompt.deaths.values(), slow.deaths.values()
    assert last - ended > 250_000_000, "the time of the first death is that of the last"
    assert not done.hit, done.note
    assert prompt.process.returncode == 0
    assert slow.process.returncode == 0
