"""The slot queues of a SQL database. A driver has one connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, Outcome, Tenure, Want
from celery_sticky.queues.guarantees import ON_SQL
from celery_sticky.queues.inspection import Dead, Depth, dead_slot
from celery_sticky.queues.sql.dead_queue import DeadQueue
from celery_sticky.queues.sql.depths import Depths
from celery_sticky.queues.sql.exchange import Exchange
from celery_sticky.queues.sql.late_commits import LateCommits
from celery_sticky.queues.sql.ledger import forget_run, trim_runs
from celery_sticky.queues.sql.names import keyspace_name
from celery_sticky.queues.sql.openings import Openings
from celery_sticky.queues.sql.waiting import Waiting
from celery_sticky.sql import Database


class SqlQueues:
    """The driver. One thread calls its methods; `wake` is for any thread. It connects at the first request."""

    guarantees = ON_SQL

    def __init__(self, database: Database, *, prefix: str) -> None:
        """`database` is for this driver alone. `prefix` is the first part of the names of queues."""
        self._database, self._prefix = database, prefix
        self._late = LateCommits(self._database)
        self._exchange = Exchange(self._database, self._late, prefix)
        self._openings = Openings(self._database, self._exchange, prefix)
        self._waiting = Waiting(self._database, self._exchange, self._late)
        self._dead = DeadQueue(self._database, prefix)
        self._depths = Depths(self._database, prefix)

    def open(self, openings: Sequence[Opening]) -> Sequence[OpenAnswer]:
        """See `SlotQueues.open`."""
        if not openings:
            return []
        answers = self._openings.open(openings)
        self._openings.clean()
        opened = [one.tenure for one, said in zip(openings, answers, strict=True) if not isinstance(said, Exception)]
        self._waiting.remove([(tenure.keyspace, tenure.slot) for tenure in opened])
        return answers

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """See `SlotQueues.fetch`."""
        self._waiting.remove([(want.tenure.keyspace, want.tenure.slot) for want in wants])
        if wants:
            self._late.sweep(self._exchange.slots.values())
        fetched = Fetched()
        # In practice all tenures are of one incarnation, that of the worker.
        tenures = [*(one.tenure for one in dispositions), *(want.tenure for want in wants)]
        for incarnation in dict.fromkeys(tenure.incarnation for tenure in tenures):
            mine = [want for want in wants if want.tenure.incarnation == incarnation]
            said = [one for one in dispositions if one.tenure.incarnation == incarnation]
            fetched.add(self._exchange.trip(mine, said, now))
        self._waiting.add(fetched.drained, bool(fetched.deliveries))
        for disposition in fetched.confirmed:
            if disposition.outcome is Outcome.MOVE:
                self._waiting.got((disposition.tenure.keyspace, disposition.to))
        return fetched

    def idle(self, timeout: float) -> set[SlotId]:
        """See `SlotQueues.idle`."""
        return self._waiting.wait(timeout)

    def wake(self) -> None:
        """See `SlotQueues.wake`."""
        self._waiting.wake()

    def release(self, tenures: Sequence[Tenure]) -> None:
        """See `SlotQueues.release`."""
        for tenure in tenures:
            self._waiting.release(tenure)

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
        return trim_runs(self._database, keyspace_name(keyspace, self._prefix), before)

    def forget_run(self, keyspace: str, run: str) -> None:
        """See `SlotQueues.forget_run`."""
        forget_run(self._database, keyspace_name(keyspace, self._prefix), run)

    def requeue(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.requeue`."""
        slot = dead_slot(dead_id)
        if slot is None or not self._dead.requeue(keyspace, slot, dead_id):
            return False
        self._waiting.got((keyspace, slot))
        return True

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        return self._dead.drop(keyspace, dead_id)

    def close(self) -> None:
        """See `SlotQueues.close`."""
        self._database.close()
        self._waiting.close()
