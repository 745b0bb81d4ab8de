"""A message as Kombu's virtual transports write it: a JSON envelope around an encoded body."""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any

import msgspec
from kombu.utils.json import loads as kombu_loads

from celery_sticky.errors import StickyError
from celery_sticky.message import STAMP_HEADER


class DamagedMessage(StickyError, ValueError):
    """The message is not an envelope that Kombu writes."""


class _Outer(msgspec.Struct, rename={"content_type": "content-type", "content_encoding": "content-encoding"}):
    body: str
    properties: dict[str, Any]
    headers: dict[str, Any] | None = None
    content_type: str | None = None
    content_encoding: str | None = None


_READER = msgspec.json.Decoder(_Outer)

# Errors that the readers raise on bytes that are no envelope; msgspec's own is a ValueError only from 0.22 on.
_NOT_READ = (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Envelope(msgspec.Struct):
    """The parts of a message; its body is decoded from base64 but not deserialised."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str
    content_encoding: str
    body: bytes

    @property
    def task(self) -> str:
        """The task's name, or an empty string."""
        return str(self.headers.get("task") or "")

    @property
    def task_id(self) -> str:
        """The task's id, or an empty string."""
        return str(self.headers.get("id") or self.properties.get("correlation_id") or "")


def loads(text: bytes) -> Any:
    """Read JSON as `json.loads` does, but faster; fall back to `json` for input such as `NaN`.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def restamped(raw: bytes, stamp: Mapping[str, Any]) -> bytes:
    """Return the envelope with another stamp and an unchanged body."""
    outer = json.loads(raw)
    outer["headers"] = {**(outer.get("headers") or {}), STAMP_HEADER: stamp}
    return json.dumps(outer).encode()


def parse(raw: bytes) -> Envelope:
    """Parse an envelope.

    Raises:
        DamagedMessage: the bytes are not an envelope.
    """
    try:
        outer = _read(raw)
        encoded = outer.properties.get("body_encoding") == "base64"
        return Envelope(
            headers=outer.headers or {},
            properties=outer.properties,
            content_type=outer.content_type or "application/json",
            content_encoding=outer.content_encoding or "utf-8",
            body=a2b_base64(outer.body) if encoded else outer.body.encode(),
        )
    except _NOT_READ as error:
        raise DamagedMessage(f"the message is not a Kombu envelope: {error!r}") from error


def _read(raw: bytes) -> _Outer:
    if b"__type__" in raw:  # Kombu writes a UUID, such as a task id, with its type; a base64 body cannot contain this
        return msgspec.convert(kombu_loads(raw), _Outer)
    try:
        return _READER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # json accepts more, for example `NaN`
        return msgspec.convert(json.loads(raw), _Outer)
