"""Keys: what may be one, and the slot of each, on every machine and in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import jump
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.errors import InvalidKey
from celery_sticky.keys import (
    MAX_KEY_BYTES,
    check_keyspace,
    hash_key,
    is_slot_queue,
    key_bytes,
    key_text,
    queue_for,
    queue_name,
    slot_for,
)

Jump = Callable[[int, int], int]


def jump_in_paper_order(h: int, buckets: int) -> int:
    """The paper's function, written out, to hold the libraries against."""
    b, j = -1, 0
    h &= 0xFFFFFFFFFFFFFFFF
    while j < buckets:
        b = j
        h = (h * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        j = int((b + 1) * (2147483648.0 / ((h >> 33) + 1)))
    return b


# The package's C code, its fallback for machines without a compiler, and the paper's text must all agree.
ALL_JUMPS = pytest.mark.parametrize("jump_hash", [jump.hash, jump.py_hash, jump_in_paper_order])

GROWING = {
    0: [0] * 20,
    1: [0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 17, 17],
    0xDEADBEEF: [0, 1, 2, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 16, 16, 16],
    0x0DDC0FFEEBADF00D: [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 15, 15, 15, 15],
}
OF_100 = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
SINGLE = [
    (10863919174838991, 11, 6),
    (2016238256797177309, 11, 3),
    (1673758223894951030, 11, 5),
    (2, 100001, 80343),
    (2201, 100001, 22152),
    (2202, 100001, 15018),
    (1, 1, 0),
    (42, 57, 43),
    (0xDEAD10CC, 1, 0),
    (0xDEAD10CC, 666, 361),
    (256, 1024, 520),
    (16045690984833335023, 255, 237),
    (123456, 1000, 984),
    *[(2**64 - 1, n, slot) for n, slot in [(1, 0), (2, 1), (10, 9), (100, 92), (256, 248)]],
]
# Another order of the two roundings, or integers, or Guava's overflow, gives another slot for these.
CRAFTED = [
    *[(1673232497983283878, n, slot) for n, slot in [(64, 63), (65, 63), (256, 244), (1000, 244)]],
    *[(5938443227449567647, n, slot) for n, slot in [(64, 63), (65, 63), (256, 234), (1000, 782)]],
    *[(5503336572419027284, n, slot) for n, slot in [(2, 1), (10, 2), (100, 41), (256, 41)]],
]


def test_the_c_implementation_of_jump_is_the_one_in_use() -> None:
    assert jump.hash is jump.c_hash


@ALL_JUMPS
def test_jump_gives_the_published_slots_of_a_growing_number_of_slots(jump_hash: Jump) -> None:
    for key, slots in GROWING.items():
        assert [jump_hash(key, n + 1) for n in range(len(slots))] == slots


@ALL_JUMPS
def test_jump_gives_the_published_slots_of_a_hundred(jump_hash: Jump) -> None:
    assert [jump_hash(key, 100) for key in range(20)] == OF_100


@ALL_JUMPS
@pytest.mark.parametrize(("key", "slots", "slot"), SINGLE + CRAFTED)
def test_jump_gives_the_published_and_the_crafted_slots(jump_hash: Jump, key: int, slots: int, slot: int) -> None:
    assert jump_hash(key, slots) == slot


# -- key -> bytes -> hash -> slots of 10, 64, 256, 1000 ---------------------------------------------

END_TO_END: list[tuple[Any, int, int, tuple[int, ...]]] = [
    ("foo", 3, 16316970633193145697, (9, 9, 177, 872)),
    ("user:1", 6, 6120565781388772718, (3, 54, 161, 752)),
    ("user:42", 7, 14772097168846764648, (2, 14, 123, 587)),
    ("order-2024-000123", 17, 8677744468219752415, (7, 59, 141, 705)),
    ("ключ", 8, 17753313917685924547, (6, 6, 174, 660)),
    (UUID("12345678-1234-5678-1234-567812345678"), 36, 5142922846276945291, (4, 48, 244, 806)),
    ("12345678-1234-5678-1234-567812345678", 36, 5142922846276945291, (4, 48, 244, 806)),
    (42, 2, 13154972877196513132, (5, 54, 230, 904)),
    ("42", 2, 13154972877196513132, (5, 54, 230, 904)),
    (-1, 2, 17128686874320516650, (8, 36, 114, 508)),
    ("-1", 2, 17128686874320516650, (8, 36, 114, 508)),
    (0, 1, 3083240331115144064, (0, 50, 50, 834)),
    ("0", 1, 3083240331115144064, (0, 50, 50, 834)),
    ("a", 1, 9607679276477937801, (5, 15, 142, 927)),
    (b"a", 1, 9607679276477937801, (5, 15, 142, 927)),
    ("\u00e9", 2, 14490466646156927976, (5, 34, 34, 371)),
    ("e\u0301", 3, 12822069617963519501, (5, 14, 124, 124)),
    ("tenant-0", 8, 15552188408714332205, (8, 30, 101, 101)),
    (b"\x00", 1, 5048724184180415669, (9, 44, 133, 260)),
    (b"\xff\xfe", 2, 15579779355691238150, (7, 7, 7, 536)),
    (b"\xed\xa0\x80", 3, 16804470516373805320, (5, 5, 5, 5)),
]


@pytest.mark.parametrize(("key", "length", "h", "slots"), END_TO_END)
def test_a_key_has_these_bytes_this_hash_and_these_slots(key: Any, length: int, h: int, slots: tuple[int, ...]) -> None:
    data = key_bytes(key)
    assert len(data) == length
    assert hash_key(data) == h
    assert tuple(slot_for(key, n) for n in (10, 64, 256, 1000)) == slots


def test_long_data_hashes_as_published() -> None:
    h = hash_key(b"x" * 10000)
    assert h == 15610610133211079687
    assert [jump.hash(h, n) for n in (10, 64, 256, 1000)] == [4, 54, 54, 54]


@given(st.text(min_size=1, max_size=200), st.integers(1, 65536))
def test_the_slot_is_what_the_paper_says(key: str, slots: int) -> None:
    try:
        data = key.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidKey):
            slot_for(key, slots)
    else:
        assert slot_for(key, slots) == jump_in_paper_order(hash_key(data), slots)


@given(st.integers() | st.uuids())
def test_a_number_or_uuid_and_its_text_are_one_key(key: int | UUID) -> None:
    assert slot_for(key) == slot_for(str(key))


def test_slots_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    keys: list[Any] = [key for key, *_ in END_TO_END]
    code = (
        "from uuid import UUID; from celery_sticky.keys import slot_for;"
        f"print([slot_for(key) for key in {keys!r}], hash('foo'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(printed) == 3, "the seed had no effect at all"
    assert {line.rpartition("]")[0] for line in printed} == {str([slot_for(key) for key in keys])[:-1]}


# -- what may be a key ------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plan(StrEnum):
    FREE = "free"


class Shouted(str):
    def __str__(self) -> str:
        return self.upper()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.upper().encode()


class Odd(int):
    def __repr__(self) -> str:
        return "odd"

    __str__ = __repr__


class Bytes(bytes):
    def __bytes__(self) -> bytes:
        return b"other"


class LikeNumpyInt:
    """Has what numpy's integers have: an index, but not `int` for a base."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        (b"", "empty"),
        (None, "NoneType"),
        (True, "bool"),
        (1.0, "float"),
        (("a", 1), 'in f"{a}:{b}"'),
        ([1], "list"),
        ({}, "dict"),
        (object(), "object"),
        (bytearray(b"a"), "bytes(key)"),
        (memoryview(b"a"), "bytes(key)"),
        (LikeNumpyInt(), "int(key)"),
        (Colour.RED, ".value"),
        (Level.HIGH, ".value"),
        (Plan.FREE, ".value"),
        ("a\ud800", "surrogate"),
        ("x" * (MAX_KEY_BYTES + 1), "at most 1024"),
        ("é" * (MAX_KEY_BYTES // 2 + 1), "at most 1024"),
        (10**MAX_KEY_BYTES, "at most 1024"),
        (10**10000, "digest"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_one_text_form_is_refused_with_advice(key: Any, reason: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        slot_for(key)
    assert reason in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_a_key_may_have_1024_bytes() -> None:
    assert len(key_bytes("x" * MAX_KEY_BYTES)) == len(key_bytes("é" * (MAX_KEY_BYTES // 2))) == MAX_KEY_BYTES


@pytest.mark.parametrize(
    ("key", "text"), [(Shouted("quiet"), "quiet"), (Odd(5), "5"), (Bytes(b"b"), "b")], ids=["str", "int", "bytes"]
)
def test_a_subclass_counts_as_its_base_type_whatever_it_overrides(key: Any, text: str) -> None:
    assert key_text(key) == text
    assert type(key_text(key)) is str


def test_only_text_travels_in_a_message() -> None:
    assert key_text("ключ".encode()) == "ключ"
    assert key_text(UUID("12345678-1234-5678-1234-567812345678".upper())) == "12345678-1234-5678-1234-567812345678"
    for raw in (b"\xff\xfe", b"\xed\xa0\x80"):
        with pytest.raises(InvalidKey, match="not valid UTF-8"):
            key_text(raw)


# -- queue names ------------------------------------------------------------------------------------


def test_a_key_s_queue_is_named_by_prefix_keyspace_and_slot() -> None:
    assert queue_for("foo") == queue_name("default", 177) == "sticky.default.177"
    assert queue_for("foo", "orders", 10, prefix="shop") == "shop.orders.9"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "x" * 65, None, 5, "a\n"])
def test_a_keyspace_s_name_has_few_characters(name: Any) -> None:
    with pytest.raises(InvalidKey, match="keyspace"):
        check_keyspace(name)
    with pytest.raises(InvalidKey, match="keyspace"):
        queue_for("foo", name)


def test_slot_queues_are_told_from_others() -> None:
    assert is_slot_queue("sticky.default.0") and is_slot_queue("shop.a-b_C.255", prefix="shop")
    for other in ("celery", "sticky", "sticky.default", "sticky.default.", "sticky.default.x", "sticky.a.b.1"):
        assert not is_slot_queue(other)
    assert not is_slot_queue("shop.default.1") and not is_slot_queue("sticky.default.²")
