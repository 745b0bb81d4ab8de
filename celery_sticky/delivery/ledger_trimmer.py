"""Makes the ledgers of a worker's keyspaces forget runs that finished long ago."""

from __future__ import annotations

import logging
from collections.abc import Collection

from celery_sticky.delivery.requests import BrokerFlow, TrimLedger
from celery_sticky.errors import SlotBroken

logger = logging.getLogger("celery_sticky.courier")

LOOK = 30.0
"""Seconds between two checks."""


class LedgerTrimmer:
    """Trims ledgers in bounded batches, as a part of the courier's flow. Several workers may do so at once."""

    def __init__(self, keyspaces: Collection[str], retention: float) -> None:
        """`retention`: for how many seconds a run that has finished is known."""
        self.next_look = 0.0 if keyspaces else float("inf")
        """When to check again, in seconds since the epoch."""
        self._keyspaces, self._retention = keyspaces, retention

    def keep(self, now: float) -> BrokerFlow[None]:
        """Forget one batch for each keyspace; do nothing before `next_look`.

        Raises:
            BrokerUnavailable: the broker does not answer.
        """
        if now < self.next_look:
            return
        self.next_look = now + LOOK
        for keyspace in self._keyspaces:
            try:
                forgotten: int = yield TrimLedger(keyspace, now - self._retention)
            except SlotBroken as error:
                logger.error("keyspace %s: %s. Its ledger is not trimmed until it is repaired", keyspace, error)
                continue
            if forgotten:
                self.next_look = now  # there may be more: continue with the next turn
