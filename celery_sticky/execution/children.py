"""Ends running keyed tasks when the trust they rely on ends, where tasks run in their own processes.

In each child of the pool, a thread watches the shared lease. It kills the child, and everything the child started, if
it runs a keyed task past the deadline or without its parent. The main process does the same from outside half a second
later, because C code that holds the interpreter lock blocks a child's own thread. If the main process dies, the kernel
kills its children, and `platform.reaper` kills the processes they started.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_sticky.execution.body import guard_traces
from celery_sticky.membership.deadline import Deadline, Reliance, TrustWatch
from celery_sticky.membership.lease import Lease
from celery_sticky.platform.reaper import FAREWELL, hire, kill_group

if TYPE_CHECKING:
    from celery_sticky.execution.run import TaskRun

logger = logging.getLogger("celery_sticky")

GRACE = 0.5
"""Seconds the main process gives a child to end itself."""


class Children:
    """Watches over keyed tasks in the children of the pool. Create it before the pool forks.

    Without `ends_tasks`, a task that runs when the trust ends may go on, but none starts afterwards.
    """

    def __init__(self, lease: Lease, runs: Mapping[int, TaskRun], tasks: Any, *, ends_tasks: bool) -> None:
        """`runs`: those whose start is reserved and that have not ended."""
        self._ends_tasks = ends_tasks
        self._lease, self._runs, self._tasks = lease, runs, tasks
        self._main = os.getpid()
        self._here: dict[str, Reliance] = {}
        self._watch = Deadline(TrustWatch(lease, self._relied_on_by_children, self._kill, grace=GRACE))
        if ends_tasks:
            _, self._reaper = hire()
            atexit.register(self._farewell)
        signals.worker_process_init.connect(self._on_child, weak=False)

    def start(self) -> None:
        """Start watching, in the main process."""
        if self._ends_tasks:
            self._watch.start()

    def stop(self) -> None:
        """Stop watching: no process of the pool is left."""
        self._watch.stop()

    def _farewell(self) -> None:
        if os.getpid() == self._main:
            self._tell_reaper(FAREWELL)

    def _tell_reaper(self, word: str) -> None:
        try:
            os.write(self._reaper, f"{word}\n".encode())
        except OSError:
            logger.warning("sticky: the reaper process is gone: processes of tasks survive a killed worker")
        os.close(self._reaper)

    # -- in a child ----------------------------------------------------------------------------

    def _on_child(self, **_: Any) -> None:
        os.setpgid(0, 0)  # processes that the task starts die with it
        guard_traces(self._tasks)
        signals.task_prerun.connect(self._on_prerun, weak=False)
        signals.task_postrun.connect(self._on_postrun, weak=False)
        if not self._ends_tasks:
            return
        self._tell_reaper(str(os.getpid()))
        # The kernel's parent-death signal is sent when the *thread* that forked us ends, and it is lost if the parent
        # died before we asked for it.
        watch = TrustWatch(self._lease, self._relied_on_here, lambda _: kill_group(os.getpid()))
        Deadline(watch, parent=self._main).start()

    def _on_prerun(self, task_id: str, task: Any, **_: Any) -> None:
        if (sticky := task.request.sticky) is not None:
            reliance = (sticky["keyspace"], sticky["membership"])
            self._here[task_id] = reliance
            if not self._lease.trusted(*reliance):
                kill_group(os.getpid())

    def _on_postrun(self, task_id: str, **_: Any) -> None:
        self._here.pop(task_id, None)

    def _relied_on_here(self) -> list[Reliance]:
        return list(self._here.values())

    # -- in the main process -------------------------------------------------------------------

    def _relied_on_by_children(self) -> list[Reliance]:
        return [run.reliance for run in tuple(self._runs.values()) if run.pid]

    def _kill(self, ended: Reliance) -> None:
        for run in tuple(self._runs.values()):
            if run.reliance == ended and run.pid:
                logger.error("sticky: the lease has ended; killing process %d, which runs %s", run.pid, run.request)
                kill_group(run.pid)
