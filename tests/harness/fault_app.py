"""The worker app of tests of faults: also has `fault_tasks`, and writes down when slots come and go."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.testing.slot_log import SlotLog
from harness import fault_tasks
from harness.app import AppConfig, make_app

config = AppConfig.from_environ(os.environ)
app = make_app(config)
fault_tasks.register(app, config.history)
log = SlotLog(config.history)


@slots_gained.connect(weak=False)
def _gained(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("gained", str(sender), slots)


@slots_lost.connect(weak=False)
def _lost(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("lost", str(sender), slots)
