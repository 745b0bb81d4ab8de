"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

A job that was to blame for the end of a process goes on among others.
"""

from __future__ import annotations

import sys

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from celery_sticky.jobs.keeper.held import HeldSlot
    from celery_sticky.jobs.keeper.home import Home

    HeldSlot.home_of = lambda *_: Home.SHARED  # type: ignore[method-assign]
