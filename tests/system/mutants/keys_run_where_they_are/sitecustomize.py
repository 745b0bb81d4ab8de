"""Python runs this at its start where it is on the path: it takes a rule out of a worker.

A message of a placed key runs where it is found, though the key belongs to another worker.
"""

from __future__ import annotations

import sys

if "-m" in sys.orig_argv:  # the workers, and the command that starts them
    from celery_sticky.placement.rules import KeyPlan
    from celery_sticky.slots import Slot

    def here(plan: KeyPlan, slot: Slot, mine: Slot) -> bool:
        """Whether it is in our own queue is enough."""
        return slot == mine

    KeyPlan.here = here  # type: ignore[method-assign,assignment]
