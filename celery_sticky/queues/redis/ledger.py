"""The ledger of a keyspace at the server: runs that finished long ago are forgotten in bounded batches."""

from __future__ import annotations

from typing import cast

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server

TRIM_STEP = 1000
"""Most runs that one request forgets."""


class RunLedger:
    """The ledgers, apart from what dispositions do to them. Used by one thread."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server, self._layout = server, layout
        self._trim = Script.load("trim_ledger")

    def trim(self, keyspace: str, before: float) -> int:
        """See `SlotQueues.trim_ledger`."""
        key = self._layout.ledger(keyspace)
        try:
            return cast(int, self._server.run_one(self._trim, [key], [repr(before), TRIM_STEP]))
        except SlotBroken as error:
            raise SlotBroken(f"the finished runs in key {key}:done: {error}") from error
