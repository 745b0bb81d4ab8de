"""The mapping from a key to its slot queue: key -> bytes -> hash -> slot -> queue name.

Everything here is pure and gives the same result on every platform, Python version and process: it uses no clock, no
I/O and no `hash()`.
"""

from __future__ import annotations

import re
from enum import Enum
from uuid import UUID

import jump
from mmh3 import mmh3_x64_128_utupledigest

from celery_sticky.errors import InvalidKey
from celery_sticky.slots import KeyPlace, Slot, parse_slot

Key = str | bytes | int | UUID

SlotId = tuple[str, Slot]
"""Keyspace and slot."""

KeyId = tuple[str, str]
"""Keyspace and key."""

MAX_KEY_BYTES = 1024
DEFAULT_SLOTS = 256
DEFAULT_KEYSPACE = "default"
DEFAULT_PREFIX = "sticky"

HASH_NAME = "murmur3-x64-128-low/jump/1"
"""Name and version of the key -> slot function. A worker compares it with the one in its keyspace's document."""

_KEYSPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TAKEN = "a key is a str, bytes, int or UUID"
_COMPOSE = 'join the parts into one text, as in f"{a}:{b}"'


def key_bytes(key: Key) -> bytes:
    """Return the bytes that represent a key.

    Text is used as it is, without Unicode normalisation. `42` and `"42"` are the same key, and so are a UUID and its
    lower-case text with dashes. Subclasses count as their base type. Enum members are refused, because their text
    depends on the Python version.

    Raises:
        InvalidKey: the key is empty, too long, not valid Unicode, or of another type.
    """
    data = key.encode() if type(key) is str and key.isascii() else _encode(key)
    if not data:
        raise InvalidKey(f"the key is empty; {_TAKEN}")
    if len(data) > MAX_KEY_BYTES:
        raise InvalidKey(f"the key has {len(data)} bytes; at most {MAX_KEY_BYTES} are allowed; use a digest of it")
    return data


def _encode(key: object) -> bytes:
    # These call the base type's methods: a subclass that overrides `encode` or `__str__` must not change the slot.
    match key:
        case Enum():
            raise InvalidKey(f"the key is a member of {type(key).__name__}; use its .value")
        case bool():
            raise InvalidKey(f"the key is a bool; {_TAKEN}: {_COMPOSE}")
        case str():
            return _encode_text(key)
        case bytes():
            return memoryview(key).tobytes()
        case int():
            return _encode_int(key)
        case UUID():
            return UUID.__str__(key).encode()
    raise InvalidKey(f"the key is a {type(key).__name__}; {_TAKEN}: {_advice(key)}")


def _encode_text(key: str) -> bytes:
    try:
        return str.encode(key, "utf-8", "strict")
    except UnicodeEncodeError as exc:
        raise InvalidKey(f"the key is not valid Unicode: character {exc.start} is a lone surrogate") from exc


def _encode_int(key: int) -> bytes:
    try:
        return int.__repr__(key).encode()
    except ValueError as exc:  # Python refuses to write integers of thousands of digits
        raise InvalidKey(f"the key is an integer of more than {MAX_KEY_BYTES} digits; use a digest of it") from exc


def _advice(key: object) -> str:
    if hasattr(key, "__index__"):
        return "use int(key)"
    if isinstance(key, bytearray | memoryview):
        return "use bytes(key)"
    return _COMPOSE


def key_text(key: Key) -> str:
    """Return the key as text, the form in which messages carry it.

    Raises:
        InvalidKey: see `key_bytes`; or the key is bytes that are not valid UTF-8.
    """
    try:
        return key_bytes(key).decode()
    except UnicodeDecodeError as exc:
        raise InvalidKey(f"the key is bytes that are not valid UTF-8 (at byte {exc.start}); use key.hex()") from exc


def hash_key(data: bytes) -> int:
    """Return the 64-bit hash of a key's bytes: the low half of MurmurHash3 x64 128, seed 0."""
    return mmh3_x64_128_utupledigest(data, 0)[0]


def slot_for(key: Key, slots: int = DEFAULT_SLOTS) -> int:
    """Return the slot, 0 to `slots` - 1, of a key.

    Raises:
        InvalidKey: see `key_bytes`.
    """
    return jump.hash(hash_key(key_bytes(key)), slots)


def queue_name(keyspace: str, slot: Slot, prefix: str = DEFAULT_PREFIX) -> str:
    """Return the name of a slot queue or of a worker queue."""
    return f"{prefix}.{keyspace}.{slot}"


def slot_of_queue(queue: str, prefix: str = DEFAULT_PREFIX) -> tuple[str, Slot] | None:
    """Return keyspace and slot of a queue by its name, or None if it is not one of our queues."""
    lead, _, rest = queue.partition(".")
    keyspace, _, slot = rest.partition(".")
    if lead != prefix or _KEYSPACE.fullmatch(keyspace) is None:
        return None
    found = parse_slot(slot)
    return None if found is None or isinstance(found, KeyPlace) else (keyspace, found)


def queue_for(
    key: Key, keyspace: str = DEFAULT_KEYSPACE, slots: int = DEFAULT_SLOTS, prefix: str = DEFAULT_PREFIX
) -> str:
    """Return the name of the queue that a key's tasks are sent to.

    Raises:
        InvalidKey: see `key_bytes` and `check_keyspace`.
    """
    return queue_name(check_keyspace(keyspace), slot_for(key, slots), prefix)


def is_slot_queue(name: str, prefix: str = DEFAULT_PREFIX) -> bool:
    """Return True if this is the name of a slot queue or a worker queue of any keyspace."""
    return slot_of_queue(name, prefix) is not None


def check_keyspace(name: object) -> str:
    """Return the name if it is valid as the name of a keyspace.

    Raises:
        InvalidKey: the name contains other characters, or is not 1 to 64 characters long.
    """
    if not isinstance(name, str) or not _KEYSPACE.fullmatch(name):
        raise InvalidKey(f"keyspace {name!r}: a keyspace's name is 1 to 64 letters, digits, '_' or '-'")
    return name
