from __future__ import annotations

from celery_sticky.ownership.events import Drained, Event, Opened
from celery_sticky.ownership.gate import Entry
from celery_sticky.queues.base import Act, Delivery, Fetched
from celery_sticky.worker.desk import Desk, End, Item
from celery_sticky.worker.envelope import Envelope

SLOT = ("default", 7)


def test_a_slot_that_is_given_away_starts_nothing_after_a_lost_connection_and_drains() -> None:
    told: list[Event] = []
    desk = Desk(lambda _, event: told.append(event), worker="w", concurrency=lambda: 1, max_waiting=9, max_attempts=5)
    desk.open(SLOT, 1, "i")
    tenure, _ = desk.next_to_open() or (None, ())
    assert tenure is not None
    desk.opened(tenure)
    entry = Entry(SLOT, 1, "key", Item(Delivery(tenure, 1, 0, b"", None), Envelope({}, {}, "", "", b"")))
    desk.admit(entry, None, 0.0)
    assert desk.gate.take(1) == [entry] and desk.gate.start(entry, entry.turn, trusted=True)
    desk.end(entry, End(Act.ACK), 0.0)
    assert len(desk.verdicts(1.0)) == 1  # the answer never comes
    desk.stop(SLOT)
    assert told == [Opened(7, 1)]

    desk.reopen_all(2.0)
    tenure, keep = desk.next_to_open() or (None, ())
    assert tenure is not None and keep == (1,)
    desk.opened(tenure)
    assert not desk.gate.is_open(SLOT) and desk.wants(3.0, company=True) == []
    desk.take_in(Fetched(confirmed=desk.verdicts(3.0)), 3.0)
    assert told == [Opened(7, 1), Drained(7)]
