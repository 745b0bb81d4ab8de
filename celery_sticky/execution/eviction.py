"""Warns at a worker's start if a server deletes keys when it runs out of memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery_sticky.errors import BrokerUnavailable, MissingDependency
from celery_sticky.platform.native import start_thread

logger = logging.getLogger("celery_sticky")

KEEPS = ("noeviction", None)
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to reach a server that does not answer: first and maximum."""


def warn_of_eviction(servers: Mapping[str, Any], socket_timeout: float) -> None:
    """Check each server (its role → a Kombu connection) in a thread of its own; return at once."""
    try:
        from celery_sticky.redis_clients import is_redis
    except MissingDependency:  # without the client library no server is Redis
        return
    for what, connection in servers.items():
        if is_redis(connection):
            start_thread(partial(_warn, what, connection, socket_timeout), f"sticky-eviction-{what}")


def _warn(what: str, connection: Any, socket_timeout: float) -> None:
    from celery_sticky.redis_clients import eviction_policy, harm_of

    pause = FIRST_PAUSE
    while True:
        try:
            policy = eviction_policy(connection, socket_timeout=socket_timeout)
        except BrokerUnavailable:  # the member and the courier report it
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if policy not in KEEPS:
            logger.warning(
                "sticky: %s %s has maxmemory-policy %s: when its memory is short %s; set it to noeviction",
                what,
                connection.as_uri(),
                policy,
                harm_of(policy),
            )
        return
