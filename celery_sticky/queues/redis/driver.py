"""The slot queues of Redis and Valkey: each verb one script, an idle courier woken by the server.

Waking rests on what Redis calls client-side caching: the server pushes a message to a connection when a key that this
connection has read is changed by another, once. So each drained slot's lists are read (`EXISTS`) once after they were
popped empty, and then nothing is sent until one of them changes. Every `SWEEP_SECONDS` all are read again: that finds
what a lost push would hide, and a server that is frozen or gone. Where the server or the access list refuses it, the
lists are read again and again instead, with growing pauses.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import redis

from celery_sticky.errors import BrokerUnavailable, Fenced
from celery_sticky.keys import Slot
from celery_sticky.ownership.gate import SlotId
from celery_sticky.queues.base import (
    Act,
    Dead,
    Depth,
    Fetched,
    Guarantees,
    Tag,
    Tenure,
    Verdict,
    Want,
    dead_slot,
    sent_at,
)
from celery_sticky.queues.redis.drained import Drained
from celery_sticky.queues.redis.exchange import arguments, arrange, field_of, read
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.resp import Argument, ServerError, pack
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.wire import Wire

SWEEP_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two looks where the server does not push."""
LOOKED_AT = 4
"""Slots that are read in the same go as they are fetched from: so few are likely to be empty after it."""
DEPTH_CHUNK = 64
DEAD_PAGE = 200
TRIM_STEP = 100
"""Buried messages that are dropped in one go."""
SMALL = 64 * 1024
"""Bytes up to which a message is read to tell its age."""


class RedisQueues:
    """Every verb but `wake` is for one thread. It connects at the first request."""

    guarantees = Guarantees(fenced=True, ordered=True, atomic=True, deferred=True, moves=True)

    def __init__(self, client: redis.Redis, layout: Layout, *, socket_timeout: float) -> None:
        self._layout = layout
        self._drained = Drained(layout)
        self._wire = Wire(client, socket_timeout, self._drained.hear)
        self._checked_on = 0
        self._pause = FIRST_PAUSE
        self._next_check = 0.0
        self._open, self._fetch, self._depth = Script.load("open"), Script.load("fetch"), Script.load("depth")
        self._dead, self._exhume, self._drop = Script.load("dead"), Script.load("exhume"), Script.load("drop")
        self._trim = Script.load("trim")

    @property
    def pushed(self) -> bool:
        """Whether the server wakes this driver (else it polls); known once it is connected."""
        return self._wire.tracking

    def open(self, tenure: Tenure, keep: Collection[Tag]) -> Collection[Tag]:
        """See `SlotQueues.open`."""
        fields = {field_of(tag): tag for tag in keep}
        said: list[Argument] = [self._layout.separator, tenure.epoch, tenure.incarnation, tenure.open_count, *fields]
        reply = self._run(self._open, [self._layout.queue(tenure.keyspace, tenure.slot)], said)
        if reply[0] == 0:
            raise Fenced(cast(int, reply[1]), cast(bytes, reply[2]).decode())
        self._drained.remove((tenure.keyspace, tenure.slot))
        return [fields[cast(bytes, name).decode()] for name in reply[1:]]

    def fetch(self, wants: Sequence[Want], verdicts: Sequence[Verdict], now: float) -> Fetched:
        """See `SlotQueues.fetch`."""
        if not wants and not verdicts:
            return Fetched()
        slots = [(want.tenure.keyspace, want.tenure.slot) for want in wants]
        for slot in slots:
            self._drained.remove(slot)
        parts = arrange(wants, verdicts)
        keys = [self._layout.queue(part.tenure.keyspace, part.tenure.slot) for part in parts]
        look = [self._drained.request(slots)] if 0 < len(slots) <= LOOKED_AT and self._wire.tracking else []
        reply, *counts = self._call(self._fetch, keys, arguments(parts, self._layout, now), look)
        fetched = read(parts, cast(Sequence[object], reply))
        for slot, want in zip(slots, wants, strict=True):
            if slot in fetched.drained:
                self._drained.add(slot, want.tenure)
        if counts == [0]:
            self._drained.unchecked.difference_update(slots)
        for verdict in verdicts:
            if verdict.act is Act.MOVE:
                self._drained.got((verdict.tenure.keyspace, verdict.to))  # the server does not tell of our own changes
        if fetched.deliveries and not self._wire.tracking:
            self._pause = FIRST_PAUSE
            self._next_check = min(self._next_check, time.monotonic() + FIRST_PAUSE)
        return fetched

    def idle(self, timeout: float) -> set[SlotId]:
        """See `SlotQueues.idle`."""
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._check(now)
            if woken := self._drained.take():
                return woken
            stirred = self._wire.wait(min(deadline, self._next_check) - now if self._drained.slots else deadline - now)
            if stirred or time.monotonic() >= deadline:
                return self._drained.take()

    def wake(self) -> None:
        """See `SlotQueues.wake`."""
        self._wire.wake()

    def close_slot(self, tenure: Tenure) -> None:
        """See `SlotQueues.close_slot`."""
        self._drained.release((tenure.keyspace, tenure.slot), tenure)

    def depth(self, keyspace: str, slots: Collection[Slot]) -> Mapping[Slot, Depth]:
        """See `SlotQueues.depth`."""
        numbers, depths = list(slots), dict[Slot, Depth]()
        for start in range(0, len(numbers), DEPTH_CHUNK):
            chunk = numbers[start : start + DEPTH_CHUNK]
            keys = [self._layout.queue(keyspace, slot) for slot in chunk]
            said: list[Argument] = [self._layout.separator, self._layout.steps_json, SMALL]
            reply = self._run(self._depth, keys, said)
            fronts = self._fronts(cast(list[bytes], reply[3::4]))
            for i, slot in enumerate(chunk):
                waiting, deferred, in_flight = cast(list[int], reply[4 * i : 4 * i + 3])
                depths[slot] = Depth(waiting, deferred, in_flight, sent_at(fronts.get(cast(bytes, reply[4 * i + 3]))))
        return depths

    def _fronts(self, lists: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return the message that is next in each of these lists."""
        named = [name for name in lists if name]
        if not named:
            return {}
        return dict(
            zip(named, cast(list[bytes | None], self._ask(*[pack("LINDEX", n, -1) for n in named])), strict=True)
        )

    def dead(self, keyspace: str, *, after: str = "", limit: int | None = None) -> Sequence[Dead]:
        """See `SlotQueues.dead`."""
        found = list[Dead]()
        while limit is None or len(found) < limit:
            wanted = DEAD_PAGE if limit is None else min(DEAD_PAGE, limit - len(found))
            page = cast(list[bytes], self._run(self._dead, [self._layout.dead(keyspace)], [after, wanted]))
            found += [Dead(name.decode(), info.decode()) for name, info in zip(page[::2], page[1::2], strict=True)]
            if len(page) < 2 * wanted:
                break
            after = found[-1].id
        return found

    def dead_message(self, keyspace: str, dead_id: str) -> Dead | None:
        """See `SlotQueues.dead_message`."""
        key = self._layout.dead(keyspace)
        value, info = self._ask(pack("HGET", key, dead_id), pack("HGET", f"{key}:info", dead_id))
        if value is None or info is None:
            return None
        return Dead(dead_id, cast(bytes, info).decode(), cast(bytes, value).partition(b":")[2])

    def dead_count(self, keyspace: str) -> int:
        """See `SlotQueues.dead_count`."""
        return cast(int, self._ask(pack("ZCARD", f"{self._layout.dead(keyspace)}:order"))[0])

    def trim_dead(self, keyspace: str, *, limit: int, before: float) -> int:
        """See `SlotQueues.trim_dead`."""
        said: list[Argument] = [limit, repr(before), TRIM_STEP]
        return cast(int, self._run_one(self._trim, [self._layout.dead(keyspace)], said))

    def exhume(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.exhume`."""
        slot = dead_slot(dead_id)
        if slot is None:
            return False
        keys = [self._layout.dead(keyspace), self._layout.queue(keyspace, slot)]
        done = self._run_one(self._exhume, keys, [self._layout.separator, dead_id]) == 1
        if done:
            self._drained.got((keyspace, slot))  # the server does not tell of our own changes
        return done

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        return self._run_one(self._drop, [self._layout.dead(keyspace)], [dead_id]) == 1

    def close(self) -> None:
        """See `SlotQueues.close`."""
        self._wire.close()

    def _check(self, now: float) -> None:
        """Read the lists of drained slots where that is due, and note those that are not empty."""
        anew = not self._wire.connected or self._wire.connects != self._checked_on
        everything = anew or now >= self._next_check
        if everything:
            slots = list(self._drained.slots)
        else:
            slots = list(self._drained.unchecked) if self._wire.tracking else []
        if not slots:
            return
        if cast(int, self._ask(self._drained.request(slots))[0]):
            counts = self._ask(*[self._drained.request([slot]) for slot in slots])
            for slot, count in zip(slots, counts, strict=True):
                if count:
                    self._drained.got(slot)
        self._drained.unchecked.difference_update(slots)
        if everything:
            self._checked_on = self._wire.connects
            self._next_check = now + (SWEEP_SECONDS if self._wire.tracking else self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _run(self, script: Script, keys: Sequence[Argument], said: Sequence[Argument]) -> Sequence[object]:
        return cast(Sequence[object], self._run_one(script, keys, said))

    def _run_one(self, script: Script, keys: Sequence[Argument], said: Sequence[Argument]) -> object:
        return self._call(script, keys, said)[0]

    def _call(
        self, script: Script, keys: Sequence[Argument], said: Sequence[Argument], after: Sequence[bytes] = ()
    ) -> list[object]:
        """Return the replies to a script and to what is asked after it; its own alone if it had to be sent again."""
        replies = self._wire.call(script.request(keys, said), *after)
        if isinstance(replies[0], ServerError) and str(replies[0]).startswith("NOSCRIPT"):
            replies = self._wire.call(script.full_request(keys, said))
        return [self._answered(reply) for reply in replies]

    def _ask(self, *requests: bytes) -> list[object]:
        return [self._answered(reply) for reply in self._wire.call(*requests)]

    def _answered(self, reply: object) -> object:
        if isinstance(reply, ServerError):
            self._wire.drop()  # it may be a replica now: connecting anew asks Sentinel again
            raise BrokerUnavailable(f"Redis: {reply}")
        return reply
