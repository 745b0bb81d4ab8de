"""Bodies too big for a script: each is stored in a list of its own, and the scripts handle a reference to it.

Lua copies a body several times, at 2 to 3 ms per megabyte, during which the server does nothing else. Plain commands
therefore set a big message aside when it is first fetched, at about the cost of a plain pop. From then on its body
stays in place: deliveries in flight, deferred messages, dead messages and other queues hold its reference.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from msgspec.structs import replace

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.base import Delivery, Disposition, Fetched, Outcome, Tag, Tenure
from celery_sticky.queues.ledger_records import tag_text
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.scripts import Script
from celery_sticky.queues.redis.server import Server
from celery_sticky.redis_resp import Argument, ServerError, pack

BIG = 256 * 1024
"""Bodies above this many bytes do not pass through a script; the scripts use the same limit."""
REFERENCE = b"\0sticky-body:"
END = 4096
"""Number of bytes at either end of a long body that enter its digest."""
UNUSED_SECONDS = 3600
"""Seconds until an uploaded body that no script has taken expires."""


def referred(body: bytes) -> bytes | None:
    """Return the key of the body that this reference names, or None if it is a body itself."""
    return body.removeprefix(REFERENCE) if body.startswith(REFERENCE) else None


def digest_of(body: bytes) -> str:
    """Return the message's name in the record of counted starts, computed as in the scripts."""
    if len(body) > 2 * END:
        body = b"%d:%b%b" % (len(body), body[:END], body[-END:])
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def _parts(tenure: Tenure) -> list[bytes]:
    return [str(part).encode() for part in (tenure.epoch, tenure.incarnation, tenure.open_count)]


@dataclass(slots=True)
class Upload:
    """Dispositions whose big bodies are stored at the server."""

    said: list[Disposition] = field(default_factory=list)
    """Dispositions to pass to the script."""
    originals: dict[int, Disposition] = field(default_factory=dict)
    """`id` of a disposition with a reference instead of its body -> the original disposition."""
    failed: list[tuple[Disposition, str]] = field(default_factory=list)
    """Dispositions whose body the server has no room for."""


class Bodies:
    """The big bodies of slot queues. Used by one thread."""

    def __init__(self, server: Server, layout: Layout) -> None:
        self._server, self._layout = server, layout
        self._aside = Script.load("aside")

    def read(self, body: bytes) -> bytes:
        """Return a body, fetched if this is a reference; empty if it is gone."""
        while (key := referred(body)) is not None:
            (found,) = self._server.wire.call(pack("LINDEX", key, 0))
            body = found if isinstance(found, bytes) else b""
        return body

    def read_all(self, deliveries: list[Delivery]) -> None:
        """Replace references by their bodies."""
        for number, delivery in enumerate(deliveries):
            if delivery.body[0:1] == b"\0" and (key := referred(delivery.body)) is not None:
                (found,) = self._server.wire.call(pack("LINDEX", key, 0))
                body = found if isinstance(found, bytes) else b""
                deliveries[number] = self._light(replace(delivery, body=body), key.decode())

    def upload(self, dispositions: Sequence[Disposition]) -> Upload:
        """Store the big bodies of dispositions."""
        upload = Upload()
        for disposition in dispositions:
            if disposition.body is None or len(disposition.body) <= BIG:
                upload.said.append(disposition)
                continue
            key = self._key(disposition)
            reply, _ = self._server.wire.call(pack("RPUSH", key, disposition.body), pack("EXPIRE", key, UNUSED_SECONDS))
            if isinstance(reply, ServerError) and str(reply).startswith("OOM"):
                upload.failed.append((disposition, f"the server is full: {reply}"))
                continue
            self._server.answered(reply)
            upload.said.append(replace(disposition, body=REFERENCE + key.encode()))
            upload.originals[id(upload.said[-1])] = disposition
        return upload

    def uploaded(self, upload: Upload, fetched: Fetched) -> None:
        """Restore the original dispositions in the answer, and delete bodies that the script has not taken."""
        own = upload.originals
        for disposition in (*fetched.refused, *(disposition for disposition, _ in fetched.failed)):
            if id(disposition) in own and (key := referred(disposition.body or b"")) is not None:
                self._server.ask(pack("UNLINK", key))
        fetched.confirmed[:] = [own.get(id(disposition), disposition) for disposition in fetched.confirmed]
        fetched.refused[:] = [own.get(id(disposition), disposition) for disposition in fetched.refused]
        fetched.failed[:] = [(own.get(id(disposition), disposition), why) for disposition, why in fetched.failed]
        fetched.failed += upload.failed

    def set_aside(self, tenure: Tenure, list_key: str, trip: int) -> Delivery | None:
        """Fetch the first message of a list by plain commands under the tenure's fence; None if there is none.

        Raises:
            SlotBroken: a record has a wrong type.
            BrokerUnavailable: it may have been fetched.
        """
        queue = self._layout.queue(tenure.keyspace, tenure.slot)
        seq = self._watch(tenure)
        if seq is None:
            return None
        tag = Tag(seq + 1, tenure.trip(trip))
        key = f"{queue}:body:{tag_text(tag)}"
        priority = self._layout.priority_of(tenure.keyspace, tenure.slot, list_key)
        value = b"%d:%b%b" % (priority, REFERENCE, key.encode())
        body = self._move(queue, list_key, key, tag, value, _parts(tenure))
        return self._light(Delivery(tenure, tag, priority, body, None), key) if body is not None else None

    def _watch(self, tenure: Tenure) -> int | None:
        """Watch the fence, return the last delivery's number; None if another tenure holds it or it is unusable."""
        queue = self._layout.queue(tenure.keyspace, tenure.slot)
        _, fence, kind = self._server.ask(
            pack("WATCH", f"{queue}:fence"),
            pack("HMGET", f"{queue}:fence", "epoch", "incarnation", "count", "opening", "seq"),
            pack("TYPE", f"{queue}:flight"),
        )
        *held, opening, seq = cast(list[bytes | None], fence)
        if held == _parts(tenure) and opening is None and kind in ("hash", "none"):
            return int(seq or 0)
        self._server.ask(pack("UNWATCH"))
        return None

    def _light(self, delivery: Delivery, key: str) -> Delivery:
        """Return the delivery with its body; put a body that was set aside but is small back into the record.

        Do the same with a reference that was set aside: nothing else handles references to references.
        """
        if not 0 < len(delivery.body) <= BIG:
            return delivery
        attempts = delivery.attempts
        if self._watch(delivery.tenure) is not None:
            queue = self._layout.queue(delivery.tenure.keyspace, delivery.tenure.slot)
            value = b"%d:%b" % (delivery.priority, delivery.body)
            *_, done = self._server.ask(
                pack("MULTI"),
                pack("HSET", f"{queue}:flight", tag_text(delivery.tag), value),
                pack("UNLINK", key),
                pack("SREM", f"{queue}:big", key),
                *([] if referred(delivery.body) else [pack("HSET", f"{queue}:fence", "light", 1, "more", 1)]),
                pack("HGET", f"{queue}:marks", digest_of(delivery.body)),
                pack("EXEC"),
            )
            counted_starts = cast(list[bytes | None], done)[-1] if done is not None else None
            attempts = int(counted_starts) if counted_starts is not None else attempts
        return replace(delivery, body=self.read(delivery.body), attempts=attempts)

    def _move(self, queue: str, list_key: str, key: str, tag: Tag, value: bytes, ours: Sequence[bytes]) -> bytes | None:
        replies = self._server.wire.call(
            pack("MULTI"),
            pack("HSET", f"{queue}:fence", "seq", tag.number, "big", 1, "more", 1),
            pack("HSET", f"{queue}:flight", tag_text(tag), value),
            pack("SADD", f"{queue}:big", key),
            pack("LMOVE", list_key, key, "RIGHT", "LEFT"),
            pack("EXEC"),
        )
        done = replies[-1]
        if done is None:
            return None  # the fence has changed meanwhile: nothing happened
        if isinstance(done, ServerError):
            if not any(str(reply).startswith("OOM") for reply in replies if isinstance(reply, ServerError)):
                self._server.answered(done)
            said: list[Argument] = [*ours, tag.number, tag_text(tag), value]
            return cast(bytes | None, self._server.run_one(self._aside, [queue, list_key, key], said))
        body = cast(list[object], done)[-1]
        if not isinstance(body, bytes):  # purged meanwhile, or of a wrong type
            self._server.ask(pack("HDEL", f"{queue}:flight", tag_text(tag)), pack("SREM", f"{queue}:big", key))
        if isinstance(body, ServerError):
            raise SlotBroken(f"key {list_key}: {body}")
        return cast(bytes | None, body)

    def _key(self, disposition: Disposition) -> str:
        tenure = disposition.tenure
        slot = disposition.to if disposition.outcome is Outcome.MOVE else tenure.slot
        return f"{self._layout.queue(tenure.keyspace, slot)}:body:{uuid.uuid4().hex}"
