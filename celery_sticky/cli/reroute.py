"""Retrying a buried message in the slot that its key belongs to now."""

from __future__ import annotations

import json
import time
from typing import Any

from kombu import Exchange

from celery_sticky.cli.session import Session
from celery_sticky.envelope import Envelope, parse
from celery_sticky.errors import InvalidKey
from celery_sticky.keys import queue_name, slot_for
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.queues import Dead
from celery_sticky.queues.inspection import dead_slot, run_of

REWRITTEN = ("delivery_info", "delivery_tag", "body_encoding", "headers")
"""Properties that a publish sets itself."""


def retry_message(session: Session, keyspace: str, dead: Dead) -> str:
    """Put the message in the queue that its key belongs to, and return that queue's name.

    Raises:
        InvalidKey: its key cannot be determined. The message stays buried.
        DamagedMessage: it cannot be parsed. The message stays buried.
        ValueError: somebody else has already retried or dropped it.
    """
    whole = session.queues.dead_message(keyspace, dead.id)
    if whole is None or whole.body is None:
        raise ValueError("it is not there any more")
    envelope = parse(whole.body)
    key, home = _key_of(session, keyspace, envelope)
    slots = session.slots_of(home, session.store(home).read())
    stamp = Stamp(key, home, slot_for(key, slots), slots, time.time())
    queue = queue_name(home, stamp.slot, session.settings.key_prefix)
    lies_in = dead_slot(dead.id)
    if (home, stamp.slot) == (keyspace, lies_in) and _says(envelope, stamp):
        if not session.queues.requeue(keyspace, dead.id):
            raise ValueError("it is not there any more")
        return queue
    if run := run_of(whole.info):
        session.queues.forget_run(keyspace, run)
    _publish(session, envelope, stamp, queue)
    session.queues.drop(keyspace, dead.id)
    return queue


def _key_of(session: Session, keyspace: str, envelope: Envelope) -> tuple[str, str]:
    """Return key and keyspace of a message, from its stamp, or else from its task and arguments."""
    header = envelope.headers.get(STAMP_HEADER)
    if isinstance(header, dict) and isinstance(header.get("key"), str):
        return header["key"], str(header.get("keyspace") or keyspace)
    spec = session.tasks.spec_for(envelope.task)
    if spec is None:
        raise InvalidKey(f"it has no stamp, and this app has no keyed task {envelope.task!r}")
    try:
        args, kwargs, _ = json.loads(envelope.body)
    except (ValueError, TypeError) as error:
        raise InvalidKey("it has no stamp, and its arguments are not JSON") from error
    return spec.key_text(args, kwargs), spec.keyspace


def _says(envelope: Envelope, right: Stamp) -> bool:
    """Return True if the message's own stamp names the right slot."""
    try:
        said = Stamp.from_header(envelope.headers.get(STAMP_HEADER))
    except InvalidKey:
        return False
    return (said.keyspace, said.slot, said.slots) == (right.keyspace, right.slot, right.slots)


def _publish(session: Session, envelope: Envelope, stamp: Stamp, queue: str) -> None:
    properties: dict[str, Any] = {
        name: value for name, value in envelope.properties.items() if name not in REWRITTEN and value is not None
    }
    with session.app.producer_or_acquire() as producer:
        producer.publish(
            envelope.body,
            exchange=Exchange("", type="direct"),
            routing_key=queue,
            declare=[],
            headers={**envelope.headers, STAMP_HEADER: stamp.to_header()},
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            retry=False,
            **properties,
        )
