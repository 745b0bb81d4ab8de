"""Consumer step: answers the loop watch from where tasks are started, if tasks can start.

With a hub, the answer is a callback of the hub. With gevent and eventlet it comes from a greenlet, and in a plain loop
from the next pass of the loop.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import Any

from celery import bootsteps
from celery.worker.state import task_ready

from celery_sticky.execution.places import grows, places
from celery_sticky.execution.shield import take_back
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.platform.native import original, start_thread

NOT_CONNECTED = "Celery is not connected to its broker"
NO_PROCESS = "no process of the pool is up"
NO_PLACE = "the pool has no place for a task"


class LoopCheck(bootsteps.StartStopStep):
    """Answers for Celery's loop."""

    requires = ("celery_sticky.bootsteps.delivery:Delivery",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._context: Any = getattr(consumer.controller, "sticky", None)
        self._watch: Any = self._context.loop_watch if self._context is not None else None
        self._owed: deque[Any] = deque()
        """One entry for each release owed to the pool's semaphore: added by the watch's thread, paid by the loop."""
        self._connected: Any = None
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._write = original("os", "write")  # called in a native thread

    def include_if(self, consumer: Any) -> bool:
        """Include the step only if the loop is watched."""
        return self._watch is not None

    def create(self, consumer: Any) -> LoopCheck:
        """Return the service that is started and stopped: this step."""
        return self

    def start(self, consumer: Any) -> None:
        """Start answering, because Celery is connected."""
        self._connected = consumer
        watch: LoopWatch = self._watch
        if watch.ask is not None:
            return
        if consumer.pool.is_green:
            start_thread(self._serve, "sticky-loop-check")
        elif consumer.hub is None:
            watch.ask = lambda: consumer.call_soon(self._answer)
            return
        watch.ask = self._poke
        watch.while_silent = lambda: self._take_back(consumer)

    def stop(self, consumer: Any) -> None:
        """Note that Celery's connection is lost: until it is back, no task can start."""
        self._connected = None

    terminate = stop

    def shutdown(self, consumer: Any) -> None:
        """Close the sockets: Celery calls this at the very end."""
        self._watch.ask = None
        self._reader.close()
        self._writer.close()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Answer from the hub, which forgets its readers at each lost connection."""
        self._reader.setblocking(False)
        hub.add_reader(self._reader, self._on_poked)

    def _poke(self) -> None:
        with suppress(OSError):  # the socket is full, or closed by now
            self._write(self._writer.fileno(), b"\0")

    def _on_poked(self, *_: Any) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._answer()

    def _serve(self) -> None:
        while self._reader.recv(4096):
            self._answer()

    def _take_back(self, consumer: Any) -> None:
        # A task that only waits for the loop to write it to a process must not hold a slot that is being given away.
        courier = self._context.courier
        self._owed.extend(take_back(consumer.pool, self._context.runs, lambda run: not courier.is_open(run.entry.slot)))

    def _answer(self) -> None:
        consumer = self._connected
        while self._owed and consumer is not None:
            task_ready(self._owed.pop())
            consumer.controller._quick_release()
        self._watch.answer(NOT_CONNECTED if consumer is None else _lacks(consumer))


def _lacks(consumer: Any) -> str:
    return "" if grows(consumer) else pool_lacks(consumer.pool)


def pool_lacks(pool: Any) -> str:
    """Return what keeps the pool from running any task, or an empty text."""
    # For Celery's event-driven prefork pool: the queues of the processes that have reported for work, busy or not.
    up = getattr(getattr(pool, "_pool", None), "_all_inqueues", None)
    if up is not None and not up:
        return NO_PROCESS
    return "" if places(pool) else NO_PLACE
