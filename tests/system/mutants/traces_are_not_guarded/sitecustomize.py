"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

A thread that ends because a result could not be stored counts as a process that died.
"""

from __future__ import annotations

import sys

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from typing import Any

    from celery_sticky.bootsteps import delivery
    from celery_sticky.execution import run
    from celery_sticky.execution.outcome import Ending, Said, decide

    def blunt(said: Said, **known: Any) -> Ending:
        """Take whatever says nothing for a death."""
        outcome = decide(said, **known)
        return Ending.DIED if outcome is Ending.FAILED and said.reserved else outcome

    run.decide = blunt  # type: ignore[attr-defined]
    delivery.guard_traces = lambda _: None  # type: ignore[attr-defined,assignment]
