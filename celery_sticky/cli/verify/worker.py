"""Imported by the worker processes: `celery -A celery_sticky.cli.verify.worker worker`."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.site import Site
from celery_sticky.signals import slots_gained, slots_lost
from celery_sticky.testing.slot_log import SlotLog

site = Site.from_environ(os.environ)
app = make_app(site)
log = SlotLog(site.history)


@slots_gained.connect(weak=False)
def _gained(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("gained", str(sender), slots)


@slots_lost.connect(weak=False)
def _lost(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("lost", str(sender), slots)
