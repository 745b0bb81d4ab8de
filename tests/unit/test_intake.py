"""How a delivery becomes an entry, whatever form its broker carries messages in."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from celery_sticky.delivery.intake import read
from celery_sticky.envelope import Envelope
from celery_sticky.errors import StickyError
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Delivery, Tag, Tenure

TENURE = Tenure("ks", 1, 1, "w-1", 1)


class Framed(Delivery, frozen=True):
    """A delivery from a broker that has no JSON around a message: `task id body`."""

    def envelope(self) -> Envelope:
        task, name, body = self.body.split()
        headers = {"task": task.decode(), "id": name.decode()}
        return Envelope(headers, {}, "application/json", "utf-8", body)

    def raw(self) -> bytes:
        raise AssertionError("nobody needs it")


class Sink:
    def concurrency(self) -> int:
        return 1

    def lock_of(self, slot: SlotId, envelope: Envelope) -> str:
        return envelope.task_id

    def claim_of(self, envelope: Envelope) -> None:
        return None

    def due_of(self, envelope: Envelope) -> None:
        return None

    def ready(self) -> None: ...

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None: ...


def test_a_delivery_of_another_form_is_read_by_its_driver_and_not_as_json() -> None:
    delivery = Framed(TENURE, Tag(1, "t"), 0, b"sync t-1 []", None)
    entry, due, reason = read(delivery, Sink(), placed=False)
    assert (entry.kind, entry.key, entry.size, due, reason) == ("sync", "t-1", 11, None, "")


def test_the_identity_of_a_message_is_the_same_in_each_delivery_and_another_for_each_message() -> None:
    delivery = Delivery(TENURE, Tag(1, "t"), 0, b"one", None)
    again = msgspec.structs.replace(delivery, tag=Tag(9, "u"), attempts=2)
    assert delivery.identity == again.identity
    assert msgspec.structs.replace(delivery, body=b"two").identity != delivery.identity
