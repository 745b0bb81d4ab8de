"""The worker app for tests of placed keyspaces."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

from celery_sticky import PinnedElsewhere, Sticky
from celery_sticky.signals import pins_forgotten, pins_lost
from harness import placed_tasks
from harness.app import AppConfig, make_app

config = AppConfig.from_environ(os.environ)
app = make_app(config)
placed_tasks.register(app, config.history, jobs="STICKY_TEST_JOBS" in os.environ)


@pins_lost.connect(weak=False)
def pin_again(sender: str, keyspace: str, keys: frozenset[str], **_: Any) -> None:
    """Log the lost pins, and pin again each key that no other worker has pinned."""
    logging.getLogger("celery").warning("lost in %s: %s", keyspace, sorted(keys))
    for key in keys:
        with suppress(PinnedElsewhere):
            Sticky.of(app).pin(key, keyspace)


@pins_forgotten.connect(weak=False)
def pin_all_again(sender: str, keyspace: str, **_: Any) -> None:
    """Log that pins may be forgotten, and pin what this worker holds: here it is always the same key."""
    logging.getLogger("celery").warning("forgotten in %s", keyspace)
    Sticky.of(app).pin("held", keyspace)
