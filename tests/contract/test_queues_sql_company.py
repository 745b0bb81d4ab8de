"""Many connections at one database: senders, workers and openings do not end each other's transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from harness.sql_broker import OnSql

from celery_sticky.keys import queue_name
from celery_sticky.queues import Disposition, Opening, Want
from celery_sticky.queues.sql import publish
from celery_sticky.sql import Database
from celery_sticky.testing.queue_steps import NOW, ack, defer, open_slot, tenure

SLOTS = range(40, 48)
ROUNDS, BATCH = 25, 8


class Threads:
    """Threads whose errors are kept."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, what: Callable[[], None]) -> None:
        """Do this in a thread."""
        self._threads.append(threading.Thread(target=self._do, args=(what,)))
        self._threads[-1].start()

    def join(self) -> None:
        """Wait for all of them."""
        for thread in self._threads:
            thread.join()

    def _do(self, what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:
            self.errors.append(error)


def send(database: Database) -> None:
    for number in range(ROUNDS):
        for slot in SLOTS:
            publish(database, queue_name("default", slot), [b"%d" % (number * BATCH + n) for n in range(BATCH)])
    database.close()


def work(broker: OnSql, part: int, seen: dict[int, list[int]]) -> None:
    """Serve every second slot; defer some messages once."""
    queues, deferred = broker.driver(), set[tuple[int, bytes]]()
    mine = [tenure(slot=slot, incarnation=f"w{part}") for slot in SLOTS if slot % 2 == part]
    assert all(not isinstance(answer, Exception) for answer in queues.open([Opening(one) for one in mine]))
    done: list[Disposition] = []
    while sum(len(seen[int(one.slot)]) for one in mine) < len(mine) * ROUNDS * BATCH:
        fetched = queues.fetch([Want(one, 20) for one in mine], done, NOW)
        assert not (fetched.refused or fetched.lost or fetched.failed)
        done = []
        for delivery in fetched.deliveries:
            slot = int(delivery.tenure.slot)
            if int(delivery.body) % 10 == 7 and (slot, delivery.body) not in deferred:
                deferred.add((slot, delivery.body))
                done.append(defer(delivery, NOW))
            else:
                seen[slot].append(int(delivery.body))
                done.append(ack(delivery))
        if len(fetched.drained) == len(mine) and not done:
            queues.idle(0.05)
    queues.fetch([], done, NOW)
    queues.close()


def test_senders_workers_and_openings_do_not_disturb_each_other(on_sql: OnSql) -> None:
    seen: dict[int, list[int]] = {slot: [] for slot in SLOTS}
    threads, ended = Threads(), threading.Event()

    def open_others() -> None:
        queues, count = on_sql.driver(), 0
        while not ended.wait(0.005):
            count += 1
            open_slot(queues, tenure(slot=60 + count % 4, count=count))
        queues.close()

    for part in (0, 1):
        threads.start(partial(work, on_sql, part, seen))
    opener = Threads()
    opener.start(open_others)
    threads.start(lambda: send(on_sql.connect()))
    threads.join()
    ended.set()
    opener.join()
    assert threads.errors + opener.errors == []
    for numbers in seen.values():
        assert sorted(numbers) == list(range(ROUNDS * BATCH)), "each exactly once"
        kept = [number for number in numbers if number % 10 != 7]
        assert kept == sorted(kept), "in order"
    assert on_sql.count("message") == 0
