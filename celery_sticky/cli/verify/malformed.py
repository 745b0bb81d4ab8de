"""Malformed messages of a keyed task. Each has a valid stamp and exactly one defect, so no worker can run it."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery_sticky.keys import slot_for
from celery_sticky.message import STAMP_HEADER, Stamp

Envelope = dict[str, Any]
"""A message as written by Kombu's virtual transports, in JSON types."""

EMBED: Mapping[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
DEEP = b"[" * 100_000 + b"]" * 100_000


def well_formed(
    task: str, args: list[Any], *, key: str, slots: int, keyspace: str = "default", task_id: str = ""
) -> Envelope:
    """Return a task's message as a sender of the current release writes it."""
    task_id = task_id or str(uuid.uuid4())
    headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "origin": "gen1@sender",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        STAMP_HEADER: Stamp(key, keyspace, slot_for(key, slots), slots, time.time()).to_header(),
    }
    properties = {
        "correlation_id": task_id,
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": ""},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    envelope = {
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return set_body(envelope, json.dumps([args, {}, dict(EMBED)]).encode())


def set_body(envelope: Envelope, body: bytes) -> Envelope:
    """Put a serialized body into the envelope."""
    envelope["body"] = base64.b64encode(body).decode()
    return envelope


def body_of(envelope: Envelope) -> Any:
    """Return the deserialised body of a well-formed envelope."""
    return json.loads(base64.b64decode(envelope["body"]))


def _body(body: bytes) -> Callable[[Envelope], object]:
    return lambda envelope: set_body(envelope, body)


def _context(position: int, value: Any) -> Callable[[Envelope], object]:
    def change(envelope: Envelope) -> None:
        parts = body_of(envelope)
        parts[position] = value
        set_body(envelope, json.dumps(parts).encode())

    return change


def _embed(**embed: Any) -> Callable[[Envelope], object]:
    return _context(2, {**EMBED, **embed})


def _header(**headers: Any) -> Callable[[Envelope], object]:
    return lambda envelope: envelope["headers"].update(headers)


def _outer(**fields: Any) -> Callable[[Envelope], object]:
    return lambda envelope: envelope.update({name.replace("_", "-"): value for name, value in fields.items()})


MALFORMED: Mapping[str, Callable[[Envelope], object]] = {
    "body of two parts": _body(b"[[], {}]"),
    "body of four parts": _body(b"[[], {}, {}, 1]"),
    "body null": _body(b"null"),
    "body number": _body(b"5"),
    "body text": _body(b'"x"'),
    "body empty list": _body(b"[]"),
    "body list of one": _body(b"[1]"),
    "body mapping": _body(b"{}"),
    "body of protocol 1": _body(b'{"task": "x", "id": "y", "args": [], "kwargs": {}}'),
    "body empty": _body(b""),
    "body broken": _body(b"{{{"),
    "body no UTF-8": _body(b'[["\xed\xa0\x80"], {}, {}]'),
    "body too deep": _body(b"[[" + DEEP + b"], {}, {}]"),
    "body of an unknown type": _body(b'[[{"__type__": "klingon", "__value__": "x"}], {}, {}]'),
    "args number": _context(0, 5),
    "args mapping": _context(0, {"a": 1}),
    "kwargs list": _context(1, [1]),
    "kwargs null": _context(1, None),
    "embed number": _context(2, 5),
    "callbacks number": _embed(callbacks=5),
    "callbacks of numbers": _embed(callbacks=[5]),
    "errbacks text": _embed(errbacks="x"),
    "chain mapping": _embed(chain={"task": "x"}),
    "chord list": _embed(chord=[1]),
    "embed with a stamp": _embed(sticky=True),
    "id list": _header(id=[]),
    "id mapping": _header(id={}),
    "id number": _header(id=5),
    "id null": _header(id=None),
    "id surrogate": _header(id="\ud800"),
    "task list": _header(task=[1]),
    "timelimit of three": _header(timelimit=[1, 2, 3]),
    "timelimit text": _header(timelimit="ab"),
    "timelimit number": _header(timelimit=5),
    "timelimit of texts": _header(timelimit=["1", "2"]),
    "timelimit not a number": _header(timelimit=[float("nan"), None]),
    "timelimit huge": _header(timelimit=[10**400, None]),
    "timelimit negative": _header(timelimit=[-1, None]),
    "expires mapping": _header(expires={}),
    "expires number": _header(expires=5),
    "expires nonsense": _header(expires="soon"),
    "eta list": _header(eta=[1]),
    "eta nonsense": _header(eta="later"),
    "retries text": _header(retries="x"),
    "retries negative": _header(retries=-1),
    "stamped_headers number": _header(stamped_headers=5),
    "stamped_headers of lists": _header(stamped_headers=[[]]),
    "stamps list": _header(stamped_headers=["a"], stamps=[1]),
    "compression that lies": _header(compression="application/x-gzip"),
    "compression unknown": _header(compression="klingon"),
    "content type unknown": _outer(content_type="application/klingon"),
    "content type not accepted": _outer(content_type="application/x-python-serialize"),
    "headers null": _outer(headers=None),
    "headers list": _outer(headers=[1]),
    "properties null": _outer(properties=None),
    "properties list": _outer(properties=[1]),
    "body list in the envelope": _outer(body=[1]),
}
"""Name of the defect -> function that adds it to a message."""


def malformed(wrong: str, task: str, args: list[Any], **options: Any) -> bytes:
    """Return a message with this defect in the form stored at the broker. For the options see `well_formed`."""
    envelope = well_formed(task, args, **options)
    MALFORMED[wrong](envelope)
    return json.dumps(envelope).encode()
