"""Checks whether Celery can build a task from a message, before Celery sees it.

Celery trusts its messages: a header of an unexpected type raises wherever it is used first, in the strategy, in the
pool's bookkeeping or in the child. There the error looks like one of a server. So everything that Celery reads of a
message (protocol 2, Celery 5.5 to 5.7) is checked here, once, and a message that fails goes to the dead queue. Headers
that do no harm (`shadow`, `argsrepr`, `lang`, `group` and the like) may have any type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from kombu.message import Message

from celery_sticky.errors import StickyError

RESERVED = ("args", "kwargs", "hostname", "is_eager", "called_directly", "delivery_info", "properties")
"""Names that Celery itself writes into a request, in addition to the headers."""
NOTHING_MORE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SIGNATURES: Mapping[str, Any] = {"callbacks": Mapping, "errbacks": Mapping | str, "chain": Mapping}
"""Types of the callbacks; an error callback may also be the name of a task."""
PLAIN = ("utf-8", "UTF-8", "utf8")
READER = msgspec.json.Decoder(tuple[list[Any], dict[str, Any], dict[str, Any]])


class Unreadable(StickyError, ValueError):
    """No worker can build a task from this message."""


def check(message: Message) -> None:
    """Decode the body of a message, once, and check everything that Celery reads of it.

    Nearly all messages look as Celery writes them, which is checked quickly.

    Raises:
        Unreadable: says what is wrong with the message.
    """
    headers = message.headers
    if not _is_usual(headers):
        _check_headers(headers)
    if not _is_usual_body(message):
        _check_body(_decoded(message), headers)


def _is_usual(headers: Mapping[str, Any]) -> bool:
    """Return whether the headers need no closer check."""
    get = headers.get
    task, task_id, retries = get("task"), get("id"), get("retries", 0)
    return (
        type(task) is type(task_id) is str
        and task.isascii()
        and task_id.isascii()
        and bool(task)
        and bool(task_id)
        and get("timelimit") in (None, [None, None])
        and type(retries) is int
        and retries >= 0
        and get("eta") is get("expires") is get("stamped_headers") is None
        and type(get("stamps", {})) is dict
    )


def _is_usual_body(message: Message) -> bool:
    """Return whether the body needs no closer check; if so, and in most other cases, it is then decoded too."""
    # Kombu's JSON loader checks every object for special types; a body without any does not need that.
    if (
        message.content_type != "application/json"
        or message.content_encoding not in PLAIN
        or message.errors
        or not (message.accept is None or "application/json" in message.accept)
        or b"__type__" in message.body
    ):
        return False
    try:
        body = message._decoded_cache = READER.decode(message.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # Kombu reads more, with better errors
        return False
    return bool(body[2] == NOTHING_MORE)


def _check_headers(headers: Mapping[str, Any]) -> None:
    _check_text(headers, "task")
    _check_text(headers, "id")
    _check_times(headers.get("timelimit"))
    _check_stamps(headers.get("stamped_headers"), headers.get("stamps"))
    _want(_is_count(headers.get("retries", 0)), headers, "retries", "a number")
    for name in ("eta", "expires"):
        _want(isinstance(headers.get(name), str | datetime | None), headers, name, "a time")


def _decoded(message: Message) -> Any:
    if message.errors:
        raise Unreadable(f"the body cannot be decompressed: {message.errors[0][1]!r:.200}")
    try:
        return message.payload
    except Exception as error:  # any serializer may raise any error
        raise Unreadable(f"the body cannot be decoded: {error!r:.300}") from error


def _check_body(body: Any, headers: Mapping[str, Any]) -> None:
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise Unreadable(f"the body is not [args, kwargs, embed] but {_shown(body)}")
    args, kwargs, embed = body
    if not isinstance(args, list | tuple):
        raise Unreadable(f"the body's args are not a list but {_shown(args)}")
    if not _is_named(kwargs):
        raise Unreadable(f"the body's kwargs are not a mapping of names but {_shown(kwargs)}")
    if embed is not None and not _is_named(embed):
        raise Unreadable(f"the body's embed is not a mapping of names but {_shown(embed)}")
    if embed == NOTHING_MORE:
        return
    if taken := [name for name in embed or () if name not in NOTHING_MORE and (name in headers or name in RESERVED)]:
        raise Unreadable(f"the body's embed would overwrite {taken[0]!r:.80}")
    for name, kinds in SIGNATURES.items():
        signatures = (embed or {}).get(name)
        if signatures is not None and not _are(signatures, kinds):
            raise Unreadable(f"the body's {name!r} is not a list of signatures but {_shown(signatures)}")
    chord = (embed or {}).get("chord")
    if chord is not None and not isinstance(chord, Mapping):
        raise Unreadable(f"the body's 'chord' is not a signature but {_shown(chord)}")


def _check_text(headers: Mapping[str, Any], name: str) -> None:
    text = headers.get(name)
    if name == "id" and isinstance(text, UUID):
        return
    _want(isinstance(text, str) and bool(text), headers, name, "a text")
    if not str(text).isascii():
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise Unreadable(f"header {name!r} is text that cannot be encoded: {text!r:.80}") from None


def _check_times(limits: Any) -> None:
    good = _are(limits, int | float | None) and len(limits) == 2 and _in_seconds(*limits)
    if limits is not None and not good:
        raise Unreadable(f"header 'timelimit' is not a pair of seconds but {_shown(limits)}")


def _in_seconds(*limits: float | None) -> bool:
    try:
        return all(one is None or (not isinstance(one, bool) and math.isfinite(one) and one >= 0) for one in limits)
    except OverflowError:  # raised for an int too large for a float
        return False


def _check_stamps(names: Any, stamps: Any) -> None:
    if names is not None and not _are(names, str):
        raise Unreadable(f"header 'stamped_headers' is not a list of names but {_shown(names)}")
    if stamps is not None and not isinstance(stamps, Mapping):
        raise Unreadable(f"header 'stamps' is not a mapping but {_shown(stamps)}")


def _want(good: bool, headers: Mapping[str, Any], name: str, wanted: str) -> None:
    if not good:
        raise Unreadable(f"header {name!r} is not {wanted} but {_shown(headers.get(name))}")


def _is_count(value: Any) -> bool:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and _are(tuple(value), str)


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | Mapping) and value:
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.80}"
