"""Whether a message can be made a task of, asked before Celery sees it.

Celery trusts its messages: a header of another type than it writes raises wherever it is used first, in the strategy,
in the pool's books or in the child, and by then it cannot be told from an error of a server. So what Celery reads of a
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
"""What Celery itself writes into a request, besides the headers."""
NOTHING_MORE = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SIGNATURES: Mapping[str, Any] = {"callbacks": Mapping, "errbacks": Mapping | str, "chain": Mapping}
"""An error callback may be the name of a task."""
PLAIN = ("utf-8", "UTF-8", "utf8")
READER = msgspec.json.Decoder(tuple[list[Any], dict[str, Any], dict[str, Any]])


class Unreadable(StickyError, ValueError):
    """No worker can make a task of this message."""


def check(message: Message) -> None:
    """Decode the body of a message, once, and look at all that Celery reads of it.

    Nearly all messages are as Celery writes them, and that is quickly seen.

    Raises:
        Unreadable: what is wrong with it.
    """
    headers = message.headers
    if not _is_usual(headers):
        _check_headers(headers)
    if not _is_usual_body(message):
        _check_body(_decoded(message), headers)


def _is_usual(headers: Mapping[str, Any]) -> bool:
    """Whether there is nothing to look at more closely."""
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
    """Whether there is nothing to look at more closely, as with headers; then, or nearly, it is decoded too."""
    # Kombu's JSON loader looks at every object for types it knows; a body without any needs none of that.
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # Kombu reads more, and says it better
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
    except Exception as error:  # of whatever serializer
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
            raise Unreadable(f"header {name!r} is no text that can be written down: {text!r:.80}") from None


def _check_times(limits: Any) -> None:
    good = _are(limits, int | float | None) and len(limits) == 2 and _in_seconds(*limits)
    if limits is not None and not good:
        raise Unreadable(f"header 'timelimit' is not a pair of seconds but {_shown(limits)}")


def _in_seconds(*limits: float | None) -> bool:
    try:
        return all(one is None or (not isinstance(one, bool) and math.isfinite(one) and one >= 0) for one in limits)
    except OverflowError:  # of an int that no float can hold
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
