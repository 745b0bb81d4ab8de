"""The slot queues that exist at a Redis or Valkey server, for `doctor`; it scans the keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.findings import Finding, wrong
from celery_sticky.keys import SlotId, slot_of_queue
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.redis_clients import client_from_connection, close_client, translate_errors

OURS = re.compile(r":(flight|deferred|fence|marks|big|ahead|body:.*)$")
"""Suffixes of the keys of a slot queue, after the name of the queue."""


def queue_findings(connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
    """Look for messages with priorities that these settings do not use, because `priority_steps` was changed."""
    layout = Layout.of(connection, prefix)
    client = client_from_connection(connection, socket_timeout=socket_timeout, decode_responses=True, protocol=2)
    pattern = f"{_literal(layout.key_prefix + layout.prefix)}.*{_literal(layout.separator)}*"
    try:
        with translate_errors(BrokerUnavailable):
            lists = [
                name.removesuffix(":ahead").rpartition(layout.separator)[2] for name in client.scan_iter(match=pattern)
            ]
    finally:
        close_client(client)
    former = Counter(step for step in lists if step not in map(str, layout.steps))
    if former:
        yield wrong(
            f"{former.total()} slot queues hold messages of priorities {', '.join(sorted(former))}, which are not in "
            f"priority_steps {list(layout.steps)}: use the same steps for all senders and workers. A worker fetches "
            "such messages when it opens their slot"
        )


def slots(connection: Any, *, prefix: str, socket_timeout: float) -> Collection[SlotId]:
    """Return the slot queues that have any key at the server."""
    layout = Layout.of(connection, prefix)
    client = client_from_connection(connection, socket_timeout=socket_timeout, decode_responses=True, protocol=2)
    named: set[SlotId] = set()
    try:
        with translate_errors(BrokerUnavailable):
            for found in client.scan_iter(match=f"{_literal(layout.key_prefix + prefix)}.*", count=1000):
                name = found.removeprefix(layout.key_prefix).partition(layout.separator)[0]
                if (slot_id := slot_of_queue(OURS.sub("", name), prefix)) is not None:
                    named.add(slot_id)
    finally:
        close_client(client)
    return named


def _literal(text: str) -> str:
    """Return a SCAN pattern that matches only this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
