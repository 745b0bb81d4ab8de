"""Logs at a worker's start what its servers' drivers warn of, such as a server that deletes keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery_sticky.drivers import Checkup, find_driver
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.platform.native import start_thread

logger = logging.getLogger("celery_sticky")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to reach a server that does not answer: first and maximum."""


def warn_of_servers(servers: Mapping[str, Any], socket_timeout: float) -> None:
    """Check each server (its role → a Kombu connection) in a thread of its own; return at once."""
    for what, connection in servers.items():
        driver = find_driver(connection)
        if driver is not None and driver.checkup is not None:
            checkup = driver.checkup()
            start_thread(partial(_warn, what, connection, checkup, socket_timeout), f"sticky-check-{what}")


def _warn(what: str, connection: Any, checkup: Checkup, socket_timeout: float) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            warning = checkup.warning(connection, socket_timeout=socket_timeout)
        except BrokerUnavailable:  # the member and the courier report it
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if warning is not None:
            logger.warning("sticky: %s %s", what, warning)
        return
