"""The ledger of a keyspace at the server, apart from what dispositions do to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.ledger_records import run_name
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_resp import Argument

TRIM_STEP = 1000
"""Most runs that one request forgets."""


class RunLedger:
    """Forgets runs. Used by one thread."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server, self._layout = server, layout
        self._trim, self._forget = Script.load("trim_ledger"), Script.load("forget")

    def trim(self, keyspace: str, before: float) -> int:
        """See `SlotQueues.trim_ledger`."""
        return cast(int, self._run(self._trim, keyspace, [repr(before), TRIM_STEP]))

    def forget(self, keyspace: str, run: str) -> None:
        """See `SlotQueues.forget_run`."""
        self._run(self._forget, keyspace, [run_name(run)])

    def _run(self, script: Script, keyspace: str, said: Sequence[Argument]) -> object:
        key = self._layout.ledger(keyspace)
        try:
            return self._server.run_one(script, [key], said)
        except SlotBroken as error:
            raise SlotBroken(f"the ledger in keys {key} and {key}:done: {error}") from error
