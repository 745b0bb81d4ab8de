"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

A slot is given away although its jobs go on.
"""

from __future__ import annotations

import sys

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from celery_sticky.jobs.keeper.held import DrainedSlot
    from celery_sticky.jobs.keeper.reconciler import JobReconciler

    def stop(reconciler: JobReconciler, slot: int) -> None:
        """Give the slot away and stop nothing."""
        held = reconciler._held.pop(slot, None)
        for run in held.runs.values() if held else ():
            reconciler.runs._runs.pop(run.ref, None)
        reconciler._drained.append(DrainedSlot(slot))

    JobReconciler.stop = stop  # type: ignore[method-assign,assignment]
