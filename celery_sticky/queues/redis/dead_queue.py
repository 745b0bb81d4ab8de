"""The buried messages of a keyspace at the server: listed in pages, read one at a time, dropped in bounded batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.inspection import Dead, run_of
from celery_sticky.queues.ledger_records import run_name
from celery_sticky.queues.redis.bodies import Bodies
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_resp import Argument, pack
from celery_sticky.slots import Slot

PAGE = 200
TRIM_STEP = 100
"""Most buried messages dropped by one request."""


class DeadQueue:
    """The dead queues, with the methods of `SlotQueues`. Used by one thread."""

    def __init__(self, server: Server, layout: Layout, bodies: Bodies) -> None:
        self._server, self._layout, self._bodies = server, layout, bodies
        self._list, self._requeue = Script.load("dead"), Script.load("requeue")
        self._drop, self._trim = Script.load("drop"), Script.load("trim")

    def page(self, keyspace: str, after: str, limit: int | None) -> Sequence[Dead]:
        """See `SlotQueues.dead`."""
        found: list[Dead] = []
        with self._about(keyspace):
            self._read_pages(keyspace, after, limit, found)
        return found

    def _read_pages(self, keyspace: str, after: str, limit: int | None, found: list[Dead]) -> None:
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = cast(list[bytes], self._server.run(self._list, [self._layout.dead(keyspace)], [after, wanted]))
            found += [Dead(name.decode(), info.decode()) for name, info in zip(page[::2], page[1::2], strict=True)]
            if len(page) < 2 * wanted:
                break
            after = found[-1].id

    @contextmanager
    def _about(self, keyspace: str) -> Iterator[None]:
        """Add the key's name to an error that does not have it."""
        try:
            yield
        except SlotBroken as error:
            raise SlotBroken(f"the buried messages in key {self._layout.dead(keyspace)}: {error}") from error

    def read(self, keyspace: str, dead_id: str) -> Dead | None:
        """See `SlotQueues.dead_message`."""
        key = self._layout.dead(keyspace)
        with self._about(keyspace):
            value, info = self._server.ask(pack("HGET", key, dead_id), pack("HGET", f"{key}:info", dead_id))
        if value is None or info is None:
            return None
        body = self._bodies.read(cast(bytes, value).partition(b":")[2])
        return Dead(dead_id, cast(bytes, info).decode(), body)

    def counts(self, keyspaces: Collection[str]) -> dict[str, int | SlotBroken]:
        """See `SlotQueues.dead_counts`."""
        asked = [pack("ZCARD", f"{self._layout.dead(keyspace)}:order") for keyspace in keyspaces]
        found: dict[str, int | SlotBroken] = {}
        for keyspace, reply in zip(keyspaces, self._server.wire.call(*asked), strict=True):
            try:
                with self._about(keyspace):
                    found[keyspace] = cast(int, self._server.answered(reply))
            except SlotBroken as broken:
                found[keyspace] = broken
        return found

    def requeue(self, keyspace: str, dead_id: str, slot: Slot) -> bool:
        """See `SlotQueues.requeue`."""
        dead = self._layout.dead(keyspace)
        keys = [dead, self._layout.queue(keyspace, slot), self._layout.ledger(keyspace)]
        with self._about(keyspace):
            (info,) = self._server.ask(pack("HGET", f"{dead}:info", dead_id))
            run = run_name(run_of(cast(bytes, info or b"").decode()))
            done = self._server.run_one(self._requeue, keys, [self._layout.separator, dead_id, run])
            if isinstance(done, bytes):
                raise SlotBroken(done.decode(errors="replace"))
        return done == 1

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        with self._about(keyspace):
            return self._server.run_one(self._drop, [self._layout.dead(keyspace)], [dead_id]) == 1

    def trim(self, keyspace: str, limit: int, before: float) -> int:
        """See `SlotQueues.trim_dead`."""
        said: list[Argument] = [limit, repr(before), TRIM_STEP]
        with self._about(keyspace):
            return cast(int, self._server.run_one(self._trim, [self._layout.dead(keyspace)], said))
