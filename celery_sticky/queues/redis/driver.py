"""The slot queues of Redis and Valkey: one script per method; the server wakes an idle courier.

Waking uses Redis's client-side caching: when another client changes a key that this connection has read, the server
pushes one message. So the driver reads a slot's lists (`EXISTS`) once after it has popped them empty, and then sends
nothing until one of them changes. Every `SWEEP_SECONDS` it reads all of them again: this reveals lost pushes, and a
server that is frozen or gone. If the server or its access list refuses pushes, the driver polls the lists with growing
pauses.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

import redis

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, Outcome, Tenure, Want
from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.inspection import Dead, Depth, dead_slot
from celery_sticky.queues.redis.bodies import Bodies
from celery_sticky.queues.redis.dead_queue import DeadQueue
from celery_sticky.queues.redis.depths import Depths
from celery_sticky.queues.redis.empty_slots import EmptySlots
from celery_sticky.queues.redis.exchange import REQUEST_DISPOSITIONS, Answer, arguments, arrange, read, split
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.ledger import RunLedger
from celery_sticky.queues.redis.openings import Openings
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_wire import Wire

SWEEP_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two polls of a server that does not push: the first pause and the longest."""
LOOKED_AT = 4
"""Up to this many slots are checked in the request that fetches from them: only then are they likely to be empty."""


class RedisQueues:
    """The driver. One thread calls its methods; `wake` is for any thread. It connects at the first request."""

    guarantees = FULL

    def __init__(self, client: redis.Redis, layout: Layout, *, socket_timeout: float) -> None:
        self.guarantees = replace(FULL, priorities=tuple(layout.steps))
        self._layout = layout
        self._empty = EmptySlots(layout)
        self._wire = Wire(client, socket_timeout, self._empty.hear)
        self._checked_on = 0
        self._trips = 0
        """Number of fetch requests: part of the tags, so that no tag names two messages."""
        self._pause = FIRST_PAUSE
        self._next_check = 0.0
        self._server = Server(self._wire)
        self._bodies = Bodies(self._server, layout)
        self._dead = DeadQueue(self._server, layout, self._bodies)
        self._ledger = RunLedger(self._server, layout)
        self._openings = Openings(self._server, layout, self._empty)
        self._depths = Depths(self._server, layout)
        self._fetch = Script.load("fetch")

    @property
    def pushed(self) -> bool:
        """Whether the server wakes this driver (otherwise it polls); known once it is connected."""
        return self._wire.pushes

    def open(self, openings: Sequence[Opening]) -> Sequence[OpenAnswer]:
        """See `SlotQueues.open`."""
        return self._openings.open(openings)

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """See `SlotQueues.fetch`."""
        if not wants and not dispositions:
            return Fetched()
        replacing = [disposition for disposition in dispositions if disposition.body]
        upload = self._bodies.upload(dispositions) if replacing else None
        answers, left = list[Answer](), upload.said if upload else dispositions
        while not answers or left:
            count = split(left) if replacing else min(len(left), REQUEST_DISPOSITIONS)
            last = count == len(left)  # the wants go with the last dispositions, or alone
            answers.append(self._trip(wants if last else [], left[:count], now))
            left = [*answers[-1].later, *left[count:]]
            wants = [] if last else wants
        fetched = answers[0].fetched
        for answer in answers[1:]:
            fetched.add(answer.fetched)
        if upload:
            self._bodies.uploaded(upload, fetched)
        self._bodies.read_all(fetched.deliveries)
        for tenure, name in [one for answer in answers for one in answer.too_big][:1]:
            self._set_aside(tenure, name, fetched)
        self._note(dispositions, fetched)
        return fetched

    def _trip(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Answer:
        slots = [(want.tenure.keyspace, want.tenure.slot) for want in wants]
        for slot in slots:
            self._empty.remove(slot)
        parts = arrange(wants, dispositions)
        keys = [self._layout.queue(part.tenure.keyspace, part.tenure.slot) for part in parts]
        look = [self._empty.request(slots)] if 0 < len(slots) <= LOOKED_AT and self._wire.pushes else []
        self._trips += 1
        said = arguments(parts, self._layout, now, self._trips)
        reply, *counts = self._server.call(self._fetch, keys, said, look)
        answer = read(parts, cast(Sequence[object], reply), self._trips)
        for slot, want in zip(slots, wants, strict=True):
            if slot in answer.fetched.drained:
                self._empty.add(slot, want.tenure)
        if counts == [0]:
            self._empty.unchecked.difference_update(slots)
        return answer

    def _set_aside(self, tenure: Tenure, name: str, fetched: Fetched) -> None:
        """Set one message aside per round trip; the others are requested again."""
        try:
            self._trips += 1
            delivery = self._bodies.set_aside(tenure, name, self._trips)
        except SlotBroken as broken:
            fetched.broken[tenure.keyspace, tenure.slot] = str(broken)
            return
        if delivery is not None:
            fetched.deliveries.append(delivery)

    def _note(self, dispositions: Sequence[Disposition], fetched: Fetched) -> None:
        for disposition in dispositions:
            if disposition.outcome is Outcome.MOVE:
                self._empty.got(
                    (disposition.tenure.keyspace, disposition.to)
                )  # the server does not announce our own changes
        if fetched.deliveries and not self._wire.pushes:
            self._pause = FIRST_PAUSE
            self._next_check = min(self._next_check, time.monotonic() + FIRST_PAUSE)

    def idle(self, timeout: float) -> set[SlotId]:
        """See `SlotQueues.idle`."""
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._check(now)
            if woken := self._empty.take():
                return woken
            stirred = self._wire.wait(min(deadline, self._next_check) - now if self._empty.slots else deadline - now)
            if stirred or time.monotonic() >= deadline:
                return self._empty.take()

    def wake(self) -> None:
        """See `SlotQueues.wake`."""
        self._wire.wake()

    def release(self, tenures: Sequence[Tenure]) -> None:
        """See `SlotQueues.release`."""
        for tenure in tenures:
            self._empty.release((tenure.keyspace, tenure.slot), tenure)

    def depths(self, slots: Collection[SlotId]) -> Mapping[SlotId, Depth]:
        """See `SlotQueues.depths`."""
        return self._depths.read(slots)

    def dead(self, keyspace: str, *, after: str = "", limit: int | None = None) -> Sequence[Dead]:
        """See `SlotQueues.dead`."""
        return self._dead.page(keyspace, after, limit)

    def dead_message(self, keyspace: str, dead_id: str) -> Dead | None:
        """See `SlotQueues.dead_message`."""
        return self._dead.read(keyspace, dead_id)

    def dead_counts(self, keyspaces: Collection[str]) -> Mapping[str, int | SlotBroken]:
        """See `SlotQueues.dead_counts`."""
        return self._dead.counts(keyspaces)

    def trim_dead(self, keyspace: str, *, limit: int, before: float) -> int:
        """See `SlotQueues.trim_dead`."""
        return self._dead.trim(keyspace, limit, before)

    def trim_ledger(self, keyspace: str, *, before: float) -> int:
        """See `SlotQueues.trim_ledger`."""
        return self._ledger.trim(keyspace, before)

    def forget_run(self, keyspace: str, run: str) -> None:
        """See `SlotQueues.forget_run`."""
        self._ledger.forget(keyspace, run)

    def requeue(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.requeue`."""
        slot = dead_slot(dead_id)
        done = slot is not None and self._dead.requeue(keyspace, dead_id, slot)
        if done and slot is not None:
            self._empty.got((keyspace, slot))  # the server does not announce our own changes
        return done

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        return self._dead.drop(keyspace, dead_id)

    def close(self) -> None:
        """See `SlotQueues.close`."""
        self._wire.close()

    def _check(self, now: float) -> None:
        """Read the lists of drained slots that are due for it, and note those that are not empty."""
        fresh = not self._wire.connected or self._wire.connects != self._checked_on
        everything = fresh or now >= self._next_check
        if everything:
            slots = list(self._empty.slots)
        else:
            slots = list(self._empty.unchecked) if self._wire.pushes else []
        if not slots:
            return
        if cast(int, self._server.ask(self._empty.request(slots))[0]):
            counts = self._server.ask(*[self._empty.request([slot]) for slot in slots])
            for slot, count in zip(slots, counts, strict=True):
                if count:
                    self._empty.got(slot)
        self._empty.unchecked.difference_update(slots)
        if everything:
            self._checked_on = self._wire.connects
            self._next_check = now + (SWEEP_SECONDS if self._wire.pushes else self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
