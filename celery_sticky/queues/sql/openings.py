"""Opens slots: takes their fences, and sorts out what was in flight under the former openings.

Nothing moves: what was in flight is in its queue again when nobody has it in flight. Entries of flight records end with
the opening that they name. New records keep those that stay in flight; those of another incarnation become suspects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.base import OpenAnswer, Opening
from celery_sticky.queues.sql.apart import BECAUSE_OF_A_SLOT, check_number, is_of_a_slot
from celery_sticky.queues.sql.deferrals import next_due
from celery_sticky.queues.sql.exchange import Exchange
from celery_sticky.queues.sql.fences import COLUMNS, Fence, make_fences, read_fences, write_fences
from celery_sticky.queues.sql.flight_table import Records, clean, in_flight, read_records
from celery_sticky.queues.sql.flights import Entry, Fetch, Group, record
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.queues.sql.open_slot import InFlight, OpenSlot
from celery_sticky.sql import Database, Runner
from celery_sticky.sql.text import chunks, marks, values


@dataclass
class Accepted:
    """An opening that is not refused, and what it found."""

    opening: Opening
    former: Fence
    flight: list[Entry] = field(default_factory=list)
    suspects: dict[int, int] = field(default_factory=dict)
    due: float | None = None

    @cached_property
    def fence(self) -> Fence:
        """The fence that it sets."""
        return self.former.after(self.opening.tenure)

    @cached_property
    def kept(self) -> list[Entry]:
        """The deliveries that stay in flight."""
        keep = set(self.opening.keep)
        return [entry for entry in self.flight if entry.tag in keep]

    def new_suspects(self) -> list[int]:
        """Return the messages that may have been started by another incarnation, and were no suspects before."""
        if self.former.incarnation == self.fence.incarnation:
            return []
        kept = {entry.id for entry in self.kept}
        return [entry.id for entry in self.flight if entry.id not in kept and entry.id not in self.suspects]

    def slot(self, name: str) -> OpenSlot:
        """Return the slot; `name` is the record of what stays in flight."""
        flight = {entry.tag: InFlight(entry.priority, entry.id, name) for entry in self.kept}
        return OpenSlot(self.opening.tenure, self.fence.queue, self.fence.opening, flight, self.suspects, self.due)


class Openings:
    """Opens slots for one driver."""

    def __init__(self, database: Database, exchange: Exchange, prefix: str) -> None:
        self._database, self._exchange, self._prefix = database, exchange, prefix
        self._former: Records = {}
        """The flight records that openings have read."""

    def open(self, openings: Sequence[Opening]) -> list[OpenAnswer]:
        """See `SlotQueues.open`."""
        try:
            return self._open(openings)
        except BECAUSE_OF_A_SLOT as error:
            if not is_of_a_slot(self._database, error):
                known = [self._exchange.slots.get((one.tenure.keyspace, one.tenure.slot)) for one in openings]
                self._exchange.forget(slot for slot in known if slot is not None)
                raise
            if len(openings) == 1:
                return [SlotBroken(str(error))]
        half = len(openings) // 2
        return [*self.open(openings[:half]), *self.open(openings[half:])]

    def clean(self) -> None:
        """Delete what the openings since the last call have made useless."""
        former, self._former = self._former, {}
        clean(self._database, former)

    def _open(self, openings: Sequence[Opening]) -> list[OpenAnswer]:
        wanted = {slot_number(one.tenure.keyspace, one.tenure.slot, self._prefix): one for one in openings}
        dialect = self._database.dialect
        name = self._exchange.name_record()
        make_fences(self._database, wanted)
        with self._database.transaction() as inside:
            fences = read_fences(inside, dialect, wanted, dialect.update)
            refused = {queue: fences[queue].refusal(one.tenure) for queue, one in wanted.items()}
            accepted = [Accepted(one, fences[queue]) for queue, one in wanted.items() if not refused[queue]]
            records = read_records(inside, {one.former.incarnation for one in accepted})
            self._read(inside, accepted, records)
            self._write(inside, accepted, name)
        answers: dict[int, OpenAnswer] = {queue: refusal for queue, refusal in refused.items() if refusal}
        for one in accepted:
            self._exchange.replace(one.slot(name))
            answers[one.fence.queue] = [entry.tag for entry in one.kept]
        self._former |= records
        return [answers[queue] for queue in wanted]

    def _read(self, inside: Runner, accepted: Sequence[Accepted], records: Records) -> None:
        """Read what the former openings left: deliveries in flight, suspects, deferred messages."""
        by_queue = {one.fence.queue: one for one in accepted}
        formers = {queue: one.former for queue, one in by_queue.items()}
        for queue, some in in_flight(inside, self._database, formers, records).items():
            by_queue[queue].flight = some
        for part in chunks(sorted(by_queue)):
            statement = f"SELECT queue, id, starts FROM {{suspect}} WHERE queue IN {marks(len(part))}"
            for queue, message, starts in inside.rows(statement, part):
                check_number("suspect", queue, "starts", starts)
                by_queue[queue].suspects[message] = starts
            for queue, due in next_due(inside, part).items():
                by_queue[queue].due = due

    def _write(self, inside: Runner, accepted: Sequence[Accepted], name: str) -> None:
        """Set the fences, and write down suspects and what stays in flight."""
        suspects: list[tuple[int, int, int]] = []
        kept: dict[bytes, list[Entry]] = defaultdict(list)
        for one in accepted:
            found = one.new_suspects()
            one.suspects.update(dict.fromkeys(found, 0))
            suspects += [(one.fence.queue, message, 0) for message in found]
            kept[one.fence.incarnation] += [entry._replace(opening=one.fence.opening) for entry in one.kept]
        for some in chunks(suspects):
            text, said = values(some)
            inside.run("INSERT INTO {suspect} (queue, id, starts) VALUES " + text, said)
        for incarnation, entries in kept.items():
            if entries:
                said = [incarnation, name.encode(), _record_of(entries)]
                inside.run("INSERT INTO {flight} (incarnation, trip, data) VALUES (%s, %s, %s)", said)
        end = self._database.dialect.upsert(COLUMNS[:1], COLUMNS[1:])
        write_fences(inside, [one.fence for one in accepted], end)


def _record_of(entries: Sequence[Entry]) -> bytes:
    """Return a flight record in which each delivery keeps its tag."""
    groups = [Group(entry.queue, entry.opening, entry.tag.number, entry.tag.trip) for entry in entries]
    return record(groups, [Fetch(number, entry.priority, entry.id) for number, entry in enumerate(entries)])
