"""Ringing and hearing with psycopg 3: `pg_notify` after a commit, and LISTEN."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus

from celery_sticky.sql.link import Link, Parameters

RING = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
"""One transaction. It holds a lock of the whole server while it commits, so the commit must not wait for the disk."""


class PostgresLink(Link):
    """See `Link`."""

    def run_and_ring(self, statement: str, said: Parameters, rings: Sequence[tuple[str, str]]) -> int:
        """See `Link.run_and_ring`. It is one round trip: the commit and the rings stand in one pipeline."""
        cursor = None
        try:
            with self.raw.pipeline() as pipeline:
                cursor = self._run(statement, said)
                pipeline.sync()  # ends the transaction of the statement
                for ring in rings:
                    self._run(RING, ring)
                    pipeline.sync()
        except (psycopg.Error, OSError):
            if cursor is None or not _succeeded(cursor):
                raise
            server = self.raw.pgconn
            if server.transaction_status != TransactionStatus.IDLE or server.pipeline_status != PipelineStatus.OFF:
                self.raw.close()  # the answer to the ring did not come, and may still be under way
        return int(cursor.rowcount)

    @property
    def closed(self) -> bool:
        """See `Link.closed`."""
        return bool(self.raw.closed)


class PostgresListener:
    """See `Listener`."""

    def __init__(self, raw: psycopg.Connection[Any], channel: str) -> None:
        self._raw, self._channel = raw, channel
        self._heard: deque[str] = deque()
        raw.add_notify_handler(lambda notified: self._heard.append(notified.payload))
        try:
            raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            raw.close()
            raise

    def fileno(self) -> int:
        """See `Listener.fileno`."""
        return self._raw.fileno()

    def ring(self, payload: str) -> None:
        """See `Listener.ring`: the server sends a connection its own notifications before the end of its answer."""
        self._raw.execute(RING, [self._channel, payload])

    def heard(self) -> list[str]:
        """See `Listener.heard`."""
        server = self._raw.pgconn
        server.consume_input()
        while (notified := server.notifies()) is not None:
            self._heard.append(notified.extra.decode())
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def close(self) -> None:
        """See `Listener.close`."""
        self._raw.close()


def _succeeded(cursor: psycopg.Cursor[Any]) -> bool:
    result = cursor.pgresult
    return result is not None and result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
