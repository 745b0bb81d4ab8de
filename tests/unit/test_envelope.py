"""Messages as they stand in a slot queue, and what is in them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.envelope import DamagedMessage, loads, parse

pytestmark = pytest.mark.unit

SURROGATE = b'"\xed\xa0\x80"'
TOO_DEEP = b"[" * 100_000 + b"]" * 100_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES, st.booleans())
def test_json_is_read_as_json_itself_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert repr(loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text", [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', SURROGATE, b"9" * 40, b'{"a":1,"a":2}', b"-0"]
)
def test_so_is_what_only_some_readers_take(text: bytes) -> None:
    assert repr(loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b"\xff", b'"\xff"', b"nan", TOO_DEEP])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each reader has words of its own)
        loads(text)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"properties":{},"body":1}', b'{"properties":' + TOO_DEEP + b"}"])
def test_a_message_that_is_no_envelope_says_so(raw: bytes) -> None:
    with pytest.raises(DamagedMessage, match="not a Kombu envelope"):
        parse(raw)
