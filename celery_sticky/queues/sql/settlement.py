"""The dispositions of one trip: which of them count, what they change in tables, and what follows in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, Outcome, Tag
from celery_sticky.queues.sql.names import keyspace_name, slot_number
from celery_sticky.queues.sql.open_slot import InFlight, OpenSlot
from celery_sticky.slots import Slot
from celery_sticky.sql import Database, Transaction
from celery_sticky.sql.bell import Topic, queue_topic
from celery_sticky.sql.text import Place, chunks, portions, values

STAYS = (Outcome.COUNT_START, Outcome.UNCOUNT_START, Outcome.CLAIM, Outcome.UNCLAIM)
"""The outcomes that settle nothing."""

SAME = "JOIN {message} m ON m.queue = d.queue AND m.priority = d.priority AND m.id = d.id"
DEFER = f"""INSERT INTO {{deferred}} (queue, due, tag, priority, body)
    SELECT m.queue, d.due, d.tag, m.priority, COALESCE(d.body, m.body) FROM %s {SAME}"""
MOVE = f"""INSERT INTO {{message}} (queue, priority, body)
    SELECT d.target, m.priority, COALESCE(d.body, m.body) FROM %s {SAME} ORDER BY d.n"""
BURY = f"""INSERT INTO {{dead}} (keyspace, name, queue, priority, at, info, body)
    SELECT d.keyspace, d.name, m.queue, m.priority, d.at, d.info, m.body FROM %s {SAME} ORDER BY d.n"""


@dataclass(frozen=True, slots=True)
class Step:
    """A disposition of a delivery that is in flight."""

    disposition: Disposition
    slot: OpenSlot
    delivery: InFlight

    @property
    def place(self) -> Place:
        """The message's primary key."""
        return self.slot.queue, self.delivery.priority, self.delivery.id

    @property
    def settles(self) -> bool:
        """Whether the message leaves its queue."""
        return self.disposition.outcome not in STAYS


@dataclass(slots=True)
class Settlement:
    """The dispositions of one trip. Memory changes with `conclude`, when the database has committed."""

    steps: list[Step] = field(default_factory=list)
    refused: list[Disposition] = field(default_factory=list)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    """Queue and message id -> starts counted after this trip, where they change."""
    counted: dict[tuple[str, object, Tag], int] = field(default_factory=dict)
    claims: dict[tuple[str, Slot, Tag], Tag | None] = field(default_factory=dict)
    """See `Fetched.claims`."""

    @property
    def only_acks(self) -> bool:
        """Whether nothing but rows of messages without counted starts and claimed runs is deleted."""
        return all(
            step.disposition.outcome is Outcome.ACK
            and step.disposition.claim is None
            and step.delivery.id not in step.slot.suspects
            for step in self.steps
        )

    @property
    def places(self) -> list[Place]:
        """The messages that leave their queue."""
        return [step.place for step in self.steps if step.settles]

    def keep(self, held: Collection[int]) -> None:
        """Refuse the dispositions for all queues but these."""
        self.refused += [step.disposition for step in self.steps if step.slot.queue not in held]
        self.steps = [step for step in self.steps if step.slot.queue in held]

    def of(self, outcome: Outcome) -> list[Step]:
        """Return the steps with this outcome, in order."""
        return [step for step in self.steps if step.disposition.outcome is outcome]


def judged(slots: Mapping[SlotId, OpenSlot], dispositions: Sequence[Disposition]) -> Settlement:
    """Return which dispositions count, as far as memory knows: the fences at the database have the last word."""
    settlement, ended = Settlement(), set[tuple[SlotId, Tag]]()
    for disposition in dispositions:
        slot = slots.get((disposition.tenure.keyspace, disposition.tenure.slot))
        delivery = slot.flight.get(disposition.tag) if slot and slot.tenure == disposition.tenure else None
        if slot is None or delivery is None or (slot.id, disposition.tag) in ended:
            settlement.refused.append(disposition)
            continue
        step = Step(disposition, slot, delivery)
        settlement.steps.append(step)
        if step.settles:
            ended.add((slot.id, disposition.tag))
    return settlement


def carry_out(settlement: Settlement, inside: Transaction, database: Database, prefix: str) -> None:
    """Change the tables, except that the rows of the settled messages are still there."""
    _copy(inside, database, DEFER, ("tag", "due double", "body bytes"), _defers(settlement))
    moves = _moves(settlement, prefix)
    ring = {queue_topic(target) for *_, target, _ in moves}
    _copy(inside, database, MOVE, ("n", "target", "body bytes"), moves, ring)
    columns = ("n", "keyspace name", "name name", "at double", "info bytes")
    _copy(inside, database, BURY, columns, _burials(settlement, prefix))
    _count(settlement, inside, database)


def conclude(settlement: Settlement, fetched: Fetched) -> Iterator[str]:
    """Change memory and write the answers; yield the flight record of each delivery that ended."""
    fetched.refused += settlement.refused
    for step in settlement.steps:
        fetched.confirmed.append(step.disposition)
        if step.settles:
            del step.slot.flight[step.disposition.tag]
            step.slot.ahead.discard((step.delivery.priority, step.delivery.id))
            step.slot.suspects.pop(step.delivery.id, None)
            yield step.delivery.record
    for slot in {step.slot.queue: step.slot for step in settlement.steps}.values():
        slot.suspects |= {
            message: count for (queue, message), count in settlement.starts.items() if queue == slot.queue
        }
    fetched.claims |= settlement.claims
    fetched.counted_starts |= settlement.counted  # type: ignore[arg-type]


Row = tuple[object, ...]


def _defers(settlement: Settlement) -> list[Row]:
    return [
        (*step.place, step.disposition.tag.number, step.disposition.due, step.disposition.body)
        for step in settlement.of(Outcome.DEFER)
    ]


def _moves(settlement: Settlement, prefix: str) -> list[tuple[int, int, int, int, int, bytes | None]]:
    return [
        (*step.place, number, slot_number(moved.tenure.keyspace, moved.to, prefix), moved.body)
        for number, step in enumerate(settlement.of(Outcome.MOVE))
        for moved in (step.disposition,)
    ]


def _burials(settlement: Settlement, prefix: str) -> list[Row]:
    return [
        (*step.place, number, keyspace_name(buried.tenure.keyspace, prefix), _name(buried), _at(buried), _info(buried))
        for number, step in enumerate(settlement.of(Outcome.BURY))
        for buried in (step.disposition,)
    ]


def _name(buried: Disposition) -> bytes:
    return f"{buried.tenure.slot}-{buried.tag.number}".encode()


def _info(buried: Disposition) -> bytes:
    return buried.info.encode()


def _at(buried: Disposition) -> float | None:
    at = json.loads(buried.info).get("at")
    return float(at) if isinstance(at, int | float) else None


def _copy(
    inside: Transaction,
    database: Database,
    statement: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    ring: Collection[Topic] = (),
) -> None:
    """Copy messages by an `INSERT … SELECT` from a table `d` of their places and these columns."""
    for some in portions(rows, _new_bytes):
        table, said = database.dialect.table("d", ("queue", "priority", "id", *columns), some)
        inside.run(statement % table, said, ring=ring)


def _new_bytes(row: Row) -> int:
    """Return the bytes of the new body in a row."""
    return len(row[-1]) if isinstance(row[-1], bytes) else 0


def _count(settlement: Settlement, inside: Transaction, database: Database) -> None:
    """Write the counted starts that change, and forget those of messages that are settled."""
    forgotten: list[Place] = []
    for step in settlement.steps:
        key, said = (step.slot.queue, step.delivery.id), step.disposition.starts
        starts = settlement.starts.get(key, step.slot.suspects.get(step.delivery.id))
        match step.disposition.outcome:
            case Outcome.COUNT_START:
                starts = settlement.starts[key] = max(starts or 0, said)
                tenure = step.disposition.tenure
                settlement.counted[tenure.keyspace, tenure.slot, step.disposition.tag] = starts
            case Outcome.UNCOUNT_START:
                if starts and starts == said:
                    settlement.starts[key] = starts - 1
            case _ if step.settles:
                settlement.starts.pop(key, None)
                if step.delivery.id in step.slot.suspects:
                    forgotten.append(step.place)
    _write_starts(settlement.starts, inside, database)
    for queue, _, message in forgotten:
        inside.run("DELETE FROM {suspect} WHERE queue = %s AND id = %s", [queue, message])


def _write_starts(starts: Mapping[tuple[int, int], int], inside: Transaction, database: Database) -> None:
    end = database.dialect.upsert(["queue", "id"], ["starts"])
    for some in chunks([(*key, count) for key, count in starts.items()]):
        rows, said = values(some)
        inside.run("INSERT INTO {suspect} (queue, id, starts) VALUES " + rows + end, said)
