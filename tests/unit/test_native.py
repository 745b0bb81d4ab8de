"""Threads of the operating system beside greenlets."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOGGING = """
import eventlet
eventlet.monkey_patch()
import logging, os
from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.worker.native import share_with_threads, start_native_thread

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
    eventlet.sleep(0)
"""


def run(share: bool, timeout: float) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "ignore", "-c", LOGGING.format(share=share)]
    return subprocess.run(command, timeout=timeout, check=True, capture_output=True)


def test_threads_log_and_send_signals_beside_the_greenlets_of_eventlet() -> None:
    run(share=True, timeout=60)


def test_they_stand_still_with_the_locks_that_eventlet_gives() -> None:
    # The reason for `share_with_threads`. Should eventlet learn it one day, the function can go.
    with pytest.raises(subprocess.TimeoutExpired):
        run(share=False, timeout=8)
