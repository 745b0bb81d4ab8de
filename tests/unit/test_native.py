"""Threads of the operating system beside greenlets."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOGGING = """
{patch}
import logging, os, time
from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.platform.native import share_with_threads, start_native_thread

logging.basicConfig(stream=open(os.devnull, "w"), level=logging.INFO)
if {share}:
    share_with_threads(slots_gained, slots_lost)
done = []

def receiver(**_):
    pass

def log():
    for n in range(3000):
        logging.info("thread %d", n)
        slots_gained.connect(receiver)
    done.append(True)

start_native_thread(log)
start_native_thread(log)
while len(done) < 2:
    for n in range(100):
        logging.info("greenlet %d", n)
        slots_gained.disconnect(receiver)
    time.sleep(0)
"""


PATCHES = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


WAITING = """
{patch}
import os, time
from celery_sticky.platform.aside_threads import AsideThreads

threads, done = AsideThreads(), []

def wait():
    time.sleep(0.001)
    done.append(True)

def files():
    return len(os.listdir("/proc/self/fd"))

before = files()
for number in range(30):
    threads.run(wait)
    while len(done) <= number:
        time.sleep(0.002)
deadline = time.monotonic() + 5
while files() > before + 6 and time.monotonic() < deadline:
    time.sleep(0.01)
assert files() <= before + 6, (before, files())
"""


def run(kind: str, *, share: bool, timeout: float) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOGGING.format(patch=PATCHES[kind], share=share)]
    subprocess.run(command, timeout=timeout, check=True, capture_output=True)


@pytest.mark.parametrize("kind", PATCHES)
def test_threads_log_and_send_signals_beside_greenlets(kind: str) -> None:
    run(kind, share=True, timeout=60)


@pytest.mark.parametrize("kind", PATCHES)
def test_with_the_locks_that_greenlets_have_they_stand_still_or_break(kind: str) -> None:
    # The reason for `share_with_threads`. Should a library learn it one day, the function can go.
    with pytest.raises(subprocess.SubprocessError):
        run(kind, share=False, timeout=8)


@pytest.mark.parametrize("kind", PATCHES)
def test_calls_that_wait_aside_leave_no_files_open(kind: str) -> None:
    """Guards: each slow handler of a signal cost a worker with greenlets two file descriptors for good."""
    command = [sys.executable, "-W", "ignore", "-c", WAITING.format(patch=PATCHES[kind])]
    subprocess.run(command, timeout=30, check=True, capture_output=True)
