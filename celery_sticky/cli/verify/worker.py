"""Imported by the worker processes: `celery -A celery_sticky.cli.verify.worker worker`."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from typing import Any

from celery.signals import worker_ready

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.pins import Pins
from celery_sticky.cli.verify.site import HANG, Site
from celery_sticky.platform.native import original, start_native_thread
from celery_sticky.signals import pins_forgotten, pins_lost, slots_gained, slots_lost
from celery_sticky.testing.slot_log import SlotLog

site = Site.from_environ(os.environ)
app = make_app(site, worker=True)
signal.signal(HANG, signal.SIG_IGN)  # until there is a loop
log = SlotLog(site.history)


@slots_gained.connect(weak=False)
def _gained(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("gained", str(sender), slots)


@slots_lost.connect(weak=False)
def _lost(sender: Any, slots: Collection[int], **_: Any) -> None:
    log.write("lost", str(sender), slots)


def _hang_when_told(consumer: Any) -> None:
    def hang() -> None:
        original("time", "sleep")(site.hang)

    # The loop itself calls `hang`, so it runs between tasks; the signal may come at any moment.
    signal.signal(HANG, lambda *_: start_native_thread(lambda: consumer.call_soon(hang)))


@worker_ready.connect(weak=False)
def _ready(sender: Any, **_: Any) -> None:
    _hang_when_told(sender)


@worker_ready.connect(weak=False)
def _pin(sender: Any, **_: Any) -> None:
    if site.pinned:
        pins = Pins(Sticky.of(app), site, str(sender.hostname), site.pinned)
        pins_lost.connect(lambda keys, **_: pins.lost(keys), weak=False)
        pins_forgotten.connect(lambda **_: pins.forgotten(), weak=False)
        pins.start()
