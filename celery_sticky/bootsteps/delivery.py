"""Consumer step: hands messages of slot queues to Celery's own strategies, and so to its pool.

The courier signals ready messages; Celery's loop takes them, never more than the pool can run. Celery stops and starts
this step whenever its own broker connection is lost. That does not affect the slots, because the courier has its own
connection.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Collection, Hashable
from contextlib import suppress
from typing import Any

from celery import bootsteps, signals
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import NotRegistered
from celery.utils.imports import symbol_by_name
from kombu.message import Message

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import Item
from celery_sticky.drivers import find_driver
from celery_sticky.envelope import Envelope
from celery_sticky.errors import StickyError
from celery_sticky.execution.body import guard_traces
from celery_sticky.execution.context import WorkerContext
from celery_sticky.execution.eta import due_of
from celery_sticky.execution.ledger import claim_of
from celery_sticky.execution.limits import limit_rates, no_rate_limits
from celery_sticky.execution.locks import lock_of
from celery_sticky.execution.places import free_places, grows, places, run_one_at_a_time
from celery_sticky.execution.readable import Unreadable, check
from celery_sticky.execution.reconnecting import connect_again_when_refused
from celery_sticky.execution.request import sticky_request_class
from celery_sticky.execution.run import StickyMessage, TaskRun
from celery_sticky.execution.shield import drop_unaccepted, shield_flush
from celery_sticky.keys import SlotId, queue_name
from celery_sticky.message import STAMP_HEADER, StickyContext
from celery_sticky.ownership.events import BrokerUp
from celery_sticky.platform.native import start_thread
from celery_sticky.queues.base import RunClaim

logger = logging.getLogger("celery_sticky")

SPARE = 4
"""Entries handed to a pool of processes beyond its size; they wait for a free process in Celery's semaphore."""
IN_A_ROW = 0.02
"""Seconds for which the loop may run entries in the loop itself before it returns to its other duties."""


class Delivery(bootsteps.StartStopStep):
    """Hands messages of slot queues to Celery. It is the courier's task sink."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._context: Any = getattr(consumer.controller, "sticky", None)
        self._consumer: Any = None
        self._solo = False
        self._timezone = consumer.app.timezone
        self._strategies: dict[str, Any] = {}
        self._started = False
        self._draining = False
        self._post_again = False
        self._posted = False
        self._apart = self._ended = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def include_if(self, consumer: Any) -> bool:
        """Include the step only if the worker takes part."""
        return self._context is not None

    def create(self, consumer: Any) -> Delivery:
        """Return the service that is started and stopped: this step."""
        name = "cancel_active_requests"
        if not hasattr(consumer, name):
            name = "cancel_all_unacked_requests"  # Celery 5.5
        cancel = getattr(consumer, name)

        def give_up() -> None:
            self._context.give_up()
            if self._context.has_processes:
                drop_unaccepted(consumer.pool)
            cancel()

        setattr(consumer, name, give_up)  # only a cold shutdown calls it
        limit_rates(consumer, self._context.courier)
        driver = find_driver(self._context.servers["the broker"])
        connect_again_when_refused(consumer, driver.failures if driver is not None else None)
        return self

    def start(self, consumer: Any) -> None:
        """Build the strategies now that Celery is connected, and take what is ready."""
        self._strategies = {name: self._strategy(task, consumer) for name, task in consumer.app.tasks.items()}
        if not self._context.has_processes:
            guard_traces(consumer.app.tasks)  # Celery has rebuilt them; a child process guards its own
        self._consumer = consumer
        green, self._solo = consumer.pool.is_green, isinstance(consumer.pool, SoloPool)
        self._apart = consumer.hub is None
        self._inline = not self._apart and not self._context.has_processes and not green
        if self._solo and self._apart:
            run_one_at_a_time(consumer.pool)
        shield_flush(consumer.pool, self._context.runs)
        self._context.refusals.dispatcher = consumer.event_dispatcher
        if not self._started:
            self._started = True
            if self._apart:
                self._wanted = threading.Event()  # a green one with gevent and eventlet
                start_thread(self._hand_out, "sticky-hand-out")
            for member in self._context.members.values():
                member.post(BrokerUp())  # if the courier cannot reach the broker, it reports that later
            self._context.courier.start(self)
        elif self._apart:
            self.ready()

    def stop(self, consumer: Any) -> None:
        """Put back what was handed out but not started; Celery dropped it, as its connection is lost or it stops."""
        self._consumer = None
        self._context.courier.put_back_all()

    terminate = stop

    def shutdown(self, consumer: Any) -> None:
        """End what hands out. Celery calls this at the very end, after `Handover` has ended the courier."""
        self._ended = True
        if self._apart:
            self._wanted.set()
        self._reader.close()
        self._writer.close()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Let the courier wake Celery's loop. Celery's hub forgets its readers at each lost connection."""
        hub.add_reader(self._reader, self._on_woken)
        self._posted = False
        self._wake_loop()

    def _strategy(self, task: Any, consumer: Any) -> Any:
        # `strategy.default` reads `task.Request` when it builds the handler (celery/worker/strategy.py). Messages of
        # ordinary queues keep the handler that Celery built with the task's own class.
        original = task.Request
        task.Request = sticky_request_class(symbol_by_name(original))
        try:
            with no_rate_limits(consumer):
                return task.start_strategy(consumer.app, consumer)
        finally:
            if "Request" in vars(task):
                del task.Request
            if task.Request is not original:
                task.Request = original

    # -- for the courier -----------------------------------------------------------------------

    def concurrency(self) -> int:
        """Return how many tasks the pool can run at a time now."""
        consumer = self._consumer
        return 1 if self._solo or consumer is None else places(consumer.pool) or 1

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        """Return the lock that the task of this message holds while it runs; raise `InvalidKey` if it has none."""
        return lock_of(self._context, slot, envelope)

    def claim_of(self, envelope: Envelope) -> RunClaim | None:
        """Return the run that must be claimed in the ledger before it starts, or None."""
        return claim_of(self._context.tasks, envelope)

    def due_of(self, envelope: Envelope) -> float | None:
        """Return when the message is due, in seconds since the Unix epoch, or None."""
        return due_of(envelope.headers, self._timezone) if envelope.headers.get("eta") else None

    def ready(self) -> None:
        """Take ready entries: in the thread or greenlet that hands out, or in Celery's loop once it is woken."""
        if self._consumer is None:
            return
        if self._apart:
            self._wanted.set()
        else:
            self._wake_loop()

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """Report messages that were buried before they could start to their callers."""
        self._context.refusals.tell(messages)

    # -- in Celery's loop, or where messages are handed out if it has none ---------------------------

    def _hand_out(self) -> None:
        # It has its own thread or greenlet, because a pool without a hub may block its caller: until it has a place, or
        # (solo) until the task has ended. Neither the courier may block, nor a task that has just ended but still has
        # its place.
        while not self._ended:
            self._wanted.wait()
            self._wanted.clear()
            self._drain()

    def _wake_loop(self) -> None:
        if self._posted:
            return
        self._posted = True
        with suppress(BlockingIOError):
            self._writer.send(b"\0")

    def _on_woken(self, *_: Any) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._posted = False  # after reading and before draining: a later post writes to the socket again
        self._drain()

    def _drain(self) -> None:
        """Take entries while the pool has room."""
        if self._draining:
            self._post_again = True
            return
        self._draining = True
        try:
            until = time.monotonic() + IN_A_ROW
            while self._take():
                if self._inline and time.monotonic() > until:
                    self._wake_loop()
                    break
        finally:
            self._draining = False
        if self._post_again:
            self._post_again = False
            self.ready()

    def _take(self) -> int:
        consumer, context = self._consumer, self._context
        if consumer is None:
            return 0
        if self._solo:
            entries = context.courier.take(1)
        else:
            room = places(consumer.pool)
            waits = not room and grows(consumer)  # a waiting task makes an empty pool grow
            at_once = 1 if waits else free_places(consumer.pool, room)
            entries = context.courier.take((room or 1) + (SPARE if context.has_processes else 0), at_once)
        for entry in entries:
            self._hand(consumer, context, entry)
        return len(entries)

    def _hand(self, consumer: Any, context: WorkerContext, entry: Entry) -> None:
        item: Item = entry.content
        headers = dict(item.envelope.headers)
        stamp = headers[STAMP_HEADER]
        keyspace, slot = entry.slot
        membership = context.lease.membership(keyspace)
        headers[STAMP_HEADER] = StickyContext(
            key=stamp["key"],
            keyspace=keyspace,
            slot=stamp["slot"],
            epoch=entry.token or item.delivery.tenure.epoch,
            attempt=(entry.attempts or 0) + entry.requeues + 1,
            worker=context.hostname,
            membership=membership,
        )
        run = TaskRun(entry, (keyspace, membership), context, self.ready)
        try:
            queue = queue_name(keyspace, slot, context.settings.key_prefix)
            message = StickyMessage(run, queue, consumer.task_consumer.accept, headers)
            check(message)
            strategy = self._strategies.get(entry.kind)
            if strategy is None:
                raise self._unknown(entry.kind, consumer, message)
            strategy(message, None, run.acknowledge, run.reject, consumer.on_task_message)
        except Unreadable as error:
            signals.task_rejected.send(sender=consumer, message=message, exc=error)
            run.refuse(error)
        except Exception as error:
            run.fail(error)

    def _unknown(self, name: str, consumer: Any, message: Message) -> Unreadable:
        error, task_id = NotRegistered(name), message.headers["id"]
        signals.task_unknown.send(sender=consumer, message=message, exc=error, name=name, id=task_id)
        if consumer.event_dispatcher:
            consumer.event_dispatcher.send("task-failed", uuid=task_id, exception=f"NotRegistered({name!r})")
        return Unreadable(f"this worker has no task {name!r}")
