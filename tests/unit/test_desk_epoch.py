"""What runs again after its slot was opened anew, runs under the tenure of today."""

from __future__ import annotations

from celery_sticky.ownership.gate import Entry, SlotId
from celery_sticky.queues.base import Act, Delivery, Fetched, Tenure
from celery_sticky.worker.desk import Desk, Item
from celery_sticky.worker.envelope import parse

SLOT: SlotId = ("default", 3)
BODY = b'{"headers": {"task": "t", "id": "i"}, "body": "", "properties": {"delivery_tag": "d"}}'


def opened(desk: Desk, epoch: int) -> Tenure:
    desk.open(SLOT, epoch, f"incarnation-{epoch}")
    opening = desk.next_to_open()
    assert opening is not None
    desk.opened(opening[0])
    return opening[0]


def begin(desk: Desk) -> Entry:
    (entry,) = desk.take(9, lambda _: True)
    assert desk.gate.start(entry, entry.turn, trusted=True)
    return entry


def test_a_task_that_was_killed_at_the_end_of_trust_runs_again_under_the_epoch_of_the_next_opening() -> None:
    """Guards: the epoch is a fencing token; that of an earlier tenure would let a zombie's effects go before ours."""
    desk = Desk(lambda *_: None, worker="w", concurrency=lambda: 1, max_waiting=9, max_attempts=5)
    tenure = opened(desk, 4)
    entry = Entry(SLOT, 1, "k", Item(Delivery(tenure, 1, 0, BODY, None), parse(BODY)))
    desk.admit(entry, None, 0.0)
    begin(desk)
    desk.close(SLOT)  # evicted, or the store was lost: while it runs the slot comes back under a higher epoch
    now = opened(desk, 8)
    desk.again(entry, counted=False)
    (mark,) = desk.verdicts(1.0)
    assert (mark.act, mark.tenure) == (Act.MARK, now)
    desk.take_in(Fetched(confirmed=[mark], marks={(*SLOT, 1): 1}), 2.0)
    assert begin(desk) is entry
    assert entry.content.delivery.tenure == now
