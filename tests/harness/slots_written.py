"""Records the slots that a worker gains and loses."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.testing.slot_log import SlotLog


def write_slots_down(history: Path) -> None:
    """Record the slots that this process gains and loses, from now on."""
    log = SlotLog(history)

    @slots_gained.connect(weak=False)
    def gained(sender: Any, slots: Collection[int], **_: Any) -> None:
        log.write("gained", str(sender), slots)

    @slots_lost.connect(weak=False)
    def lost(sender: Any, slots: Collection[int], **_: Any) -> None:
        log.write("lost", str(sender), slots)
