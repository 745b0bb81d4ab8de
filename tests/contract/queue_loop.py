"""A courier and a publisher in one process, with real threads or green ones: run as `queue_loop.py MODULE URL`.

MODULE is what patches the standard library (`gevent.monkey`, `eventlet`) or `none`.
"""

from __future__ import annotations

import importlib
import sys
import time

if sys.argv[1] != "none":
    patcher = importlib.import_module(sys.argv[1])
    getattr(patcher, "patch_all", None) and patcher.patch_all()
    getattr(patcher, "monkey_patch", None) and patcher.monkey_patch()

import threading

from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.queues import Disposition, Opening, Outcome, SlotQueues, Tenure, Want
from celery_sticky.redis_clients import client_from_connection

TENURE = Tenure("default", 7, 1, "a", 1)
MESSAGES = 200


def courier(queues: SlotQueues, got: list[bytes]) -> None:
    queues.open([Opening(TENURE)])
    dispositions: list[Disposition] = []
    while len(got) < MESSAGES:
        fetched = queues.fetch([Want(TENURE, 10)], dispositions, time.time())
        dispositions = [Disposition(Outcome.ACK, TENURE, delivery.tag) for delivery in fetched.deliveries]
        got += [delivery.body for delivery in fetched.deliveries]
        if fetched.drained and len(got) < MESSAGES:
            queues.idle(10.0)
    queues.fetch([Want(TENURE, 10)], dispositions, time.time())


def ticker(ticks: list[float], stop: threading.Event) -> None:
    while not stop.is_set():
        ticks.append(time.monotonic())
        time.sleep(0.01)


def main(url: str) -> None:
    queues = open_queues(Connection(url), prefix="sticky", socket_timeout=5.0)
    client = client_from_connection(Connection(url), socket_timeout=5.0)
    got: list[bytes] = []
    thread = threading.Thread(target=courier, args=(queues, got))
    thread.start()
    for number in range(MESSAGES):
        client.lpush("sticky.default.7", str(number))
        time.sleep(0.002)
    thread.join(30)
    assert got == [b"%d" % number for number in range(MESSAGES)], got

    ticks: list[float] = []
    stop = threading.Event()
    thread = threading.Thread(target=ticker, args=(ticks, stop))
    thread.start()
    queues.idle(0.5)
    assert len(ticks) >= 5, "an idle blocks the other threads"
    stop.set()
    thread.join()

    thread = threading.Thread(target=queues.idle, args=(60.0,))
    thread.start()
    time.sleep(0.2)
    queues.wake()
    thread.join(10)
    assert not thread.is_alive(), "a wake did not end the idle"
    queues.close()


main(sys.argv[2])
