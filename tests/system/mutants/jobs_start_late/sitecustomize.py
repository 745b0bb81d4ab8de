"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

Jobs start 5 s after their slot came here, which is no work for a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from celery_sticky.jobs.keeper.reconciler import JobReconciler
    from celery_sticky.slots import Slot

    came: dict[tuple[Slot, int], float] = {}
    in_time = JobReconciler.reconcile

    def reconcile(reconciler: JobReconciler, now: float, may_start: Callable[[int], bool]) -> dict[Slot, list[str]]:
        """Keep back the starts in slots that came lately."""
        reserves = in_time(reconciler, now, may_start)
        late = [slot for slot in reserves if now < came.setdefault((slot, reconciler.epoch(slot)), now) + 5.0]
        reconciler.again(late)
        reconciler.waiting |= bool(late)
        return {slot: ids for slot, ids in reserves.items() if slot not in late}

    JobReconciler.reconcile = reconcile  # type: ignore[method-assign,assignment]
