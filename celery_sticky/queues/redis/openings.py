"""Opens slots: one script for each, all in one round trip. A slot with much in flight takes further requests."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import cast

from celery_sticky.errors import Fenced, SlotBroken
from celery_sticky.queues.base import OpenAnswer, Opening, Tag
from celery_sticky.queues.ledger_records import tag_text
from celery_sticky.queues.redis.empty_slots import EmptySlots
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_resp import Argument, pack

logger = logging.getLogger("celery_sticky.queues")

REFUSED, GOES_ON, FAILED = 0, 2, 3
"""Results of an opening that is not complete."""
OPEN_STEP = 300
"""Most deliveries that one request names to put back."""

Reply = Sequence[object]


class Openings:
    """Opens slots for one driver."""

    def __init__(self, server: Server, layout: Layout, empty: EmptySlots) -> None:
        self._server, self._layout, self._empty = server, layout, empty
        self._script = Script.load("open")
        self._warned = False

    def open(self, openings: Sequence[Opening]) -> list[OpenAnswer]:
        """See `SlotQueues.open`."""
        calls = [self._call(opening) for opening in openings]
        replies = self._server.run_each(self._script, calls)
        return [
            self._answer(opening, call, cast(Reply | SlotBroken, reply))
            for opening, call, reply in zip(openings, calls, replies, strict=True)
        ]

    def _call(self, opening: Opening) -> tuple[list[Argument], list[Argument]]:
        tenure, fields = opening.tenure, [tag_text(tag) for tag in opening.keep]
        said: list[Argument] = [self._layout.separator, self._layout.steps_json]
        said += (tenure.epoch, tenure.incarnation, tenure.open_count, len(fields), *fields)
        return [self._layout.queue(tenure.keyspace, tenure.slot)], said

    def _answer(
        self, opening: Opening, call: tuple[list[Argument], list[Argument]], reply: Reply | SlotBroken
    ) -> OpenAnswer:
        try:
            if not isinstance(reply, SlotBroken) and reply[0] == GOES_ON:
                reply = self._go_on(opening, call)
        except SlotBroken as broken:
            return broken
        if isinstance(reply, SlotBroken):
            return reply
        if reply[0] == REFUSED:
            return Fenced(cast(int, reply[1]), cast(bytes, reply[2]).decode())
        if reply[0] == FAILED:
            return SlotBroken(cast(bytes, reply[1]).decode(errors="replace"))
        self._empty.remove((opening.tenure.keyspace, opening.tenure.slot))
        self._warn(cast(bytes, reply[1]))
        fields = {tag_text(tag): tag for tag in opening.keep}
        return [fields[cast(bytes, name).decode()] for name in reply[2:]]

    def _go_on(self, opening: Opening, call: tuple[list[Argument], list[Argument]]) -> Reply:
        """Put back in parts what is in flight. The fence is set: nothing can be added."""
        keys, said = call
        back = self._in_flight(str(keys[0]), opening.keep)
        reply: Reply = (GOES_ON,)
        while reply[0] == GOES_ON:
            reply = self._server.run(self._script, keys, [*said, *back[:OPEN_STEP]])
            back = back[cast(int, reply[1]) :] if reply[0] == GOES_ON else []
        return reply

    def _in_flight(self, queue: str, keep: Collection[Tag]) -> list[str]:
        """Return the fields of deliveries to put back, last fetched first."""
        (names,) = self._server.ask(pack("HKEYS", f"{queue}:flight"))
        fields = {name.decode() for name in cast(list[bytes], names)} - {tag_text(tag) for tag in keep}
        return sorted(fields, key=lambda name: int(name.partition(":")[0]), reverse=True)

    def _warn(self, former: bytes) -> None:
        if former and not self._warned:
            self._warned = True
            logger.warning(
                "key %s holds messages of a priority that is not in priority_steps %s; they are fetched too. "
                "Give all senders and workers the same priority_steps",
                former.decode(),
                list(self._layout.steps),
            )
