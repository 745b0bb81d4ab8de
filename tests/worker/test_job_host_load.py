"""Thousands of jobs in one host: what they cost (`-rP` shows the figures), and that none keeps the others waiting."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import pytest
from harness.host import TestHost, settle

from celery_sticky.jobs.wire import Ended, Message, Noted, Ready, Started
from celery_sticky.testing.waiting import wait_until

MANY = 3000


@pytest.mark.parametrize("name", ["quiet", "async", "sync"])
def test_thousands_start_and_stop_at_once_and_the_loop_goes_on(host: TestHost, name: str) -> None:
    lag = host.started("lag")
    orders = [host.order(name, f"k{number}", {}) for number in range(MANY)]
    began = time.monotonic()
    host.process.send(orders)
    wait_until(lambda: host.count(Started) == MANY + 1, 60, f"all start: {host}")
    start_took = time.monotonic() - began
    began = time.monotonic()
    host.stop(*(order.ref for order in orders))
    wait_until(lambda: host.count(Ended) == MANY, 60, f"all stop: {host}")
    stop_took = time.monotonic() - began
    assert all(isinstance(host.by_ref[order.ref][-1], Ended) for order in orders)
    host.stop(lag)
    longest = float(host.wait_log(r"lag:([\d.]+) k")[1])
    told = f"{MANY} {name}: {start_took:.2f} s to start, {stop_took:.2f} s to stop, the loop busy for {longest:.3f} s"
    sys.stdout.write(told)
    assert longest < 2, told


def test_an_idle_job_costs_less_than_10_kilobytes(host: TestHost) -> None:
    many = 5000
    host.stop(host.started("quiet"))
    before = host.rss
    host.process.send([host.order("quiet", f"tenant-{number}", {"tenant": number}) for number in range(many)])
    wait_until(lambda: host.count(Started) == many + 1, 60, f"all start: {host}")
    each = (host.rss - before) / many
    sys.stdout.write(f"{each:.0f} bytes for each of {many} idle jobs")
    assert each < 10_000


CHUNKS = 100
"""Messages of 200 notifications each that are sent at a time."""


def test_a_worker_that_does_not_listen_is_not_told_ever_more(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    listens, hear = threading.Event(), host.events.append
    ref = host.started("quiet")

    def wait_and_hear(message: Message) -> None:
        if not isinstance(message, Ready):
            listens.wait()
        hear(message)

    monkeypatch.setattr(host.process, "_on_message", wait_and_hear)
    says, sent = host.process._says, itertools.count()

    def takes_no_more() -> bool:
        """Send more, and look whether any of it is taken."""
        before = says.qsize()
        for _ in range(CHUNKS):
            chunk = next(sent)
            host.notify(ref, *(f"{chunk}-{number}".ljust(200) for number in range(200)))
        settle(1.0)
        return says.qsize() == before + CHUNKS

    try:
        wait_until(takes_no_more, 60, "the host takes no more")
    finally:
        listens.set()  # also for the end of the fixture
    told = 200 * next(sent)
    wait_until(lambda: sum(isinstance(event, Noted) for event in list(host.events)) == told, 60, f"{host}")
