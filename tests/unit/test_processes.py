"""What a process knows of itself by /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from celery_sticky.testing.processes import cpu_wait

SPIN = "import os; os.sched_setaffinity(0, {int(%d)})\nwhile True: pass"


def test_a_process_knows_when_it_was_started() -> None:
    code = "from celery_sticky.testing.processes import born; print(born())"
    before, tick = time.monotonic_ns(), 10**9 // os.sysconf("SC_CLK_TCK")
    said = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert before - 2 * tick <= said <= time.monotonic_ns()


def test_a_process_knows_how_long_it_waited_for_a_cpu() -> None:
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not count it")
    cpus = os.sched_getaffinity(0)
    cpu = min(cpus)
    other = subprocess.Popen([sys.executable, "-c", SPIN % cpu])
    try:
        os.sched_setaffinity(0, {cpu})
        before = cpu_wait()
        while cpu_wait() < before + 10_000_000:
            pass  # the other one wants the same CPU
    finally:
        os.sched_setaffinity(0, cpus)
        other.kill()
        other.wait()
