"""What watches over running keyed tasks, in the process that runs them: at the end of trust they end.

In a child of the pool a thread looks at the shared lease and kills the child, with whatever it started, while it runs a
keyed task past the deadline or without its parent. The main process does the same half a second later, from outside:
C code that holds the interpreter lock would keep a child's own thread waiting. Pools without processes get `LeaseLost`
raised into the task, best effort: a thread is interrupted at its next bytecode, a greenlet when it next gives way, the
main thread (solo) also out of most blocking calls.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from typing import Any

from celery import signals
from celery.exceptions import Reject

from celery_sticky.bootsteps.part import Part
from celery_sticky.settings import OnLeaseLoss
from celery_sticky.worker.deadline import Deadline, Held
from celery_sticky.worker.native import start_thread

logger = logging.getLogger("celery_sticky")

GRACE = 0.5
"""Seconds the main process leaves a child to end itself."""
INTERRUPT = signal.SIGURG
"""Tells the main thread to look whether its task has lost its lease. Ignored where nobody handles it."""


class LeaseLost(Reject):
    """Raised into a keyed task when its worker may no longer act on its key."""

    def __init__(self, reason: str = "the worker's lease has ended", requeue: bool = True) -> None:
        super().__init__(reason, requeue)


class Execution:
    """Marks the keyed tasks that run in this process and ends them with the trust they rely on."""

    def __init__(self, part: Part, *, green: bool) -> None:
        self._part = part
        self._green = green
        self._main = os.getpid()
        self._here: dict[str, tuple[Held, Any]] = {}
        self._ends_tasks = part.settings.on_lease_loss is OnLeaseLoss.TERMINATE
        # Before the pool forks, so that its first children know it too.
        signals.task_prerun.connect(self._on_prerun, weak=False)
        signals.task_postrun.connect(self._on_postrun, weak=False)
        if self._ends_tasks and part.has_processes:
            signals.worker_process_init.connect(self._on_child, weak=False)

    def start(self) -> None:
        """Begin to watch, in the main process."""
        if not self._ends_tasks:
            return
        if self._part.has_processes:
            Deadline(self._part.lease, self._held_by_children, self._kill_children, grace=GRACE).start()
            return
        watch = Deadline(self._part.lease, self._held_here, self._interrupt)
        if self._green:
            start_thread(watch.run, "sticky-deadline")  # a greenlet: only its own hub may interrupt another
        else:
            signal.signal(INTERRUPT, self._on_interrupt)
            watch.start()

    # -- marks ---------------------------------------------------------------------------------

    def _on_prerun(self, task_id: str, task: Any, **_: Any) -> None:
        sticky = task.request.sticky
        if sticky is None:
            return
        held = (sticky["keyspace"], sticky["term"])
        self._here[task_id] = (held, _current(self._green))
        if self._ends_tasks and os.getpid() != self._main and not self._part.lease.trusted(*held):
            _die()

    def _on_postrun(self, task_id: str, **_: Any) -> None:
        if self._here.pop(task_id, None) is None and not self._green:
            # It was interrupted, perhaps after its last line: the exception must not hit what runs here next.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)

    def _held_here(self) -> list[Held]:
        return [held for held, _ in tuple(self._here.values())]

    # -- in a child ----------------------------------------------------------------------------

    def _on_child(self, **_: Any) -> None:
        os.setpgid(0, 0)  # what the task starts dies with it
        self._here.clear()
        Deadline(self._part.lease, self._held_here, lambda held: _die(), parent=self._main).start()

    # -- in the main process -------------------------------------------------------------------

    def _held_by_children(self) -> list[Held]:
        return [run.held for run in tuple(self._part.runs.values()) if run.pid]

    def _kill_children(self, ended: Held) -> None:
        for run in tuple(self._part.runs.values()):
            if run.held == ended and run.pid:
                logger.error("sticky: the lease has ended; killing process %d, which runs %s", run.pid, run.request)
                _kill_group(run.pid)

    def _interrupt(self, ended: Held) -> None:
        for task_id, (held, where) in tuple(self._here.items()):
            if held == ended:
                logger.error("sticky: the lease has ended; interrupting task %s", task_id)
                self._raise_into(task_id, where)

    def _raise_into(self, task_id: str, where: Any) -> None:
        if "gevent" in sys.modules and hasattr(where, "kill"):
            where.kill(LeaseLost(), block=False)
        elif "eventlet" in sys.modules and hasattr(where, "kill"):
            where.kill(LeaseLost)
        elif where == threading.main_thread().ident:
            signal.pthread_kill(where, INTERRUPT)
            return  # its handler takes the mark
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(where), ctypes.py_object(LeaseLost))
        self._here.pop(task_id, None)

    def _on_interrupt(self, *_: Any) -> None:
        # In the main thread, between two bytecodes: so either the task is still marked, or it has ended.
        for task_id, (held, _where) in tuple(self._here.items()):
            if not self._part.lease.trusted(*held):
                del self._here[task_id]
                raise LeaseLost()


def _current(green: bool) -> Any:
    """Return what runs the current task: a greenlet, or the id of a thread."""
    return sys.modules["greenlet"].getcurrent() if green else threading.get_ident()


def _die() -> None:
    _kill_group(os.getpid())


def _kill_group(pid: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself
