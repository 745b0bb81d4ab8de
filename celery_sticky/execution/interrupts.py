"""Ends running keyed tasks when the trust they rely on ends, in pools without processes: raises `LeaseLost` in them.

Best effort, and only within the task's own body. A thread is interrupted at its next bytecode, a greenlet when it next
yields, the main thread (solo) also in most blocking calls. Code that takes locks which the rest of the worker needs,
such as logging, is never interrupted: an exception between taking a lock and the `try` that frees it would hang the
worker.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery.exceptions import Reject

from celery_sticky.execution.body import entering
from celery_sticky.membership.deadline import Deadline, Reliance, TrustWatch
from celery_sticky.membership.lease import Lease
from celery_sticky.platform.native import start_thread

logger = logging.getLogger("celery_sticky")

INTERRUPT = signal.SIGURG
"""Tells the main thread to check whether its task has lost its lease; ignored if nobody handles it."""
ROOMS = ("drivers", "placement.lookup", "jobs", "queues", "redis_clients", "router", "sql", "stores", "testing")
CALLED = tuple(f"celery_sticky.{room}" for room in (*ROOMS, "transport", "wiring"))
"""Our own modules that tasks call."""
CLIENTS = ("redis.", "psycopg.", "psycopg_binary.", "pymysql.")
LOCKING = ("logging", "threading", "queue", "importlib", "weakref", "kombu.", "celery.", *CLIENTS, *CALLED)
"""Modules whose code is never interrupted."""


class LeaseLost(Reject):
    """Raised in a keyed task when its worker may no longer act on its key."""

    def __init__(self, reason: str = "the worker's lease has ended", requeue: bool = True) -> None:
        super().__init__(reason, requeue)


class Interrupts:
    """Watches over keyed tasks that run in this process.

    Without `ends_tasks`, a task that runs when the trust ends may go on, but none starts afterwards.
    """

    def __init__(self, lease: Lease, *, green: bool, ends_tasks: bool) -> None:
        self._lease, self._green, self._ends_tasks = lease, green, ends_tasks
        self._here: dict[Any, Reliance] = {}
        self._watch = Deadline(TrustWatch(lease, lambda: list(self._here.values()), self._interrupt))

    def start(self) -> None:
        """Start watching."""
        if not self._ends_tasks:
            return
        if self._green:
            start_thread(self._watch.run, "sticky-deadline")  # a greenlet: only its own hub may interrupt another
        else:
            if threading.current_thread() is threading.main_thread():  # else no task of the worker runs there
                signal.signal(INTERRUPT, self._on_signal)
            self._watch.start()

    def stop(self) -> None:
        """Stop watching: no task runs any more."""
        self._watch.stop()

    def guard(self, task: Any) -> None:
        """Make the task's body register itself while it runs."""
        # In tests a process may run several workers, one after the other: only the last one's lease counts.
        task.run = self._guarded(task, getattr(task.run, "sticky_unguarded", task.run))

    def _guarded(self, task: Any, body: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            sticky = (entering(task) or {}).get("sticky")
            if sticky is None:
                return body(*args, **kwargs)
            where = sys.modules["greenlet"].getcurrent() if self._green else threading.get_ident()
            reliance = (sticky["keyspace"], sticky["membership"])
            if not self._lease.trusted(*reliance):
                raise LeaseLost()  # the process was stopped between reserving the start and starting
            self._here[where] = reliance
            try:
                return body(*args, **kwargs)
            finally:
                if self._here.pop(where, None) is None and not self._green:
                    _take_back(where)

        run.sticky_unguarded = body  # type: ignore[attr-defined]
        return run

    def _interrupt(self, ended: Reliance) -> None:
        for where, reliance in tuple(self._here.items()):
            if reliance == ended:
                self._raise_into(where)

    def _raise_into(self, where: Any) -> None:
        if self._green:
            if self._here.pop(where, None):
                logger.error("sticky: the lease has ended; interrupting %r", where)
                # The argument `block` exists in gevent only; eventlet's `kill` throws at once, which we want there.
                where.kill(LeaseLost(), block=False) if hasattr(where, "loop") else where.kill(LeaseLost)
        elif where == threading.main_thread().ident:
            signal.pthread_kill(where, INTERRUPT)
        elif (frame := sys._current_frames().get(where)) is not None and _may_raise(frame):
            self._here.pop(where, None)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(where), ctypes.py_object(LeaseLost))

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        # Runs in the main thread, between two bytecodes: its task is either registered or has ended.
        where = threading.get_ident()
        reliance = self._here.get(where)
        if reliance is not None and not self._lease.trusted(*reliance) and frame is not None and _may_raise(frame):
            del self._here[where]
            raise LeaseLost()


def _may_raise(frame: FrameType | None) -> bool:
    """Return whether no code on the stack, from the task's body inwards, takes locks that others need."""
    while frame is not None and frame.f_code.co_filename != __file__:
        if str(frame.f_globals.get("__name__")).startswith(LOCKING):
            return False
        frame = frame.f_back
    return True


def _take_back(thread: int) -> None:
    # If it was sent but not yet raised when the body ended, it must not hit the next code in this thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
