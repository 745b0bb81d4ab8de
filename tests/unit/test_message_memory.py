"""What a worker remembers of messages: bounded, once, and by what they say."""

from __future__ import annotations

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.message_memory import REMEMBERED, MessageMemory, Starts
from celery_sticky.delivery.state import End
from celery_sticky.queues.base import Outcome

ACK = End(Outcome.ACK)


def test_an_end_is_recalled_once() -> None:
    memory = MessageMemory()
    assert not memory
    memory.note_end(b"m", ACK)
    assert memory
    assert memory.recall(b"m") == (ACK, None)
    assert memory.recall(b"m") == (None, None)
    assert not memory


def test_starts_are_recalled_with_the_epoch_in_which_they_were_counted() -> None:
    memory = MessageMemory()
    memory.note_starts(b"m", Entry(("ks", 1), 1, "key", attempts=2, start_counted=True), 7)
    assert memory.recall(b"m") == (None, Starts(2, True, 7, ()))


def test_no_more_messages_are_remembered_than_there_is_room_for() -> None:
    memory = MessageMemory()
    for number in range(REMEMBERED + 5):
        memory.note_end(b"%d" % number, ACK)
    assert memory.recall(b"4") == (None, None)
    assert memory.recall(b"5") == (ACK, None)
