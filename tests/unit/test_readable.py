"""What Celery reads of a message, checked before Celery sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_sticky.cli.verify.malformed import MALFORMED, Envelope, body_of, malformed, set_body, well_formed
from celery_sticky.envelope import DamagedMessage, parse
from celery_sticky.execution.readable import Unreadable, check

pytestmark = pytest.mark.unit
ACCEPT = prepare_accept_content(["json"])
LATER = ("expires nonsense", "eta nonsense", "headers null")
"""Celery reads these times itself, and refuses them; without headers there is no stamp."""


def message_of(raw: bytes) -> Message:
    envelope = parse(raw)
    return Message(
        body=envelope.body,
        content_type=envelope.content_type,
        content_encoding=envelope.content_encoding,
        properties=envelope.properties,
        headers=envelope.headers,
        accept=ACCEPT,
        channel=None,
    )


def refusal_of(message: Message) -> str | None:
    try:
        check(message)
    except Unreadable as error:
        return str(error)
    return None


def good() -> Envelope:
    return well_formed("t", [1, {"a": [None]}], key="k", slots=16)


@pytest.mark.parametrize("wrong", [wrong for wrong in MALFORMED if wrong not in LATER])
def test_what_is_wrong_is_said(wrong: str) -> None:
    with pytest.raises((Unreadable, DamagedMessage)) as caught:
        check(message_of(malformed(wrong, "t", [], key="k", slots=16)))
    assert len(str(caught.value)) > 15


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"shadow": 5, "argsrepr": {}, "lang": [], "group": 5, "root_id": [], "origin": None, "ignore_result": "x"},
        {"timelimit": [3, 1.5], "expires": "2099-01-01T00:00:00+00:00", "retries": 3},
        {"timelimit": None, "stamped_headers": ["tenant"], "stamps": {"tenant": ["a"]}},
        {"task": "läuft", "id": "ü"},
    ],
)
def test_what_celery_writes_and_what_does_no_harm_is_let_through(headers: dict[str, Any]) -> None:
    envelope = good()
    envelope["headers"] |= headers
    check(message_of(json.dumps(envelope).encode()))


def test_the_body_is_decoded_once_and_kept() -> None:
    message = message_of(json.dumps(good()).encode())
    check(message)
    assert message.payload is message.payload and message.payload[0] == [1, {"a": [None]}]


UUID = b'{"__type__": "uuid", "__value__": {"hex": "%s"}}' % (b"0" * 32)


@pytest.mark.parametrize("body", [b"[[NaN], {}, null]", b"[[%b], {}, {}]" % UUID])
def test_what_only_kombu_reads_is_read_by_kombu(body: bytes) -> None:
    check(message_of(json.dumps(set_body(good(), body)).encode()))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(good()["headers"])), values)
def test_any_value_of_a_header_is_let_through_or_refused_with_a_reason(name: str, value: Any) -> None:
    envelope = good()
    envelope["headers"][name] = value
    message = message_of(json.dumps(envelope).encode())
    assert name in (refusal_of(message) or name)


@given(st.integers(0, 2), values)
def test_any_part_of_a_body_is_let_through_or_refused_with_a_reason(position: int, value: Any) -> None:
    envelope = good()
    parts = body_of(envelope)
    parts[position] = value
    message = message_of(json.dumps(set_body(envelope, json.dumps(parts).encode())).encode())
    assert "body" in (refusal_of(message) or "body")


@pytest.mark.parametrize(
    ("headers", "embed"),
    [
        pytest.param({"id": {"__type__": "uuid", "__value__": {"hex": "0" * 32}}}, {}, id="a UUID as the task's id"),
        pytest.param(
            {"eta": {"__type__": "datetime", "__value__": "2026-01-01T00:00:00+00:00"}}, {}, id="a datetime as its ETA"
        ),
        pytest.param({"chain": "eth"}, {"chain": [{"task": "t"}]}, id="a header named like a part of the canvas"),
        pytest.param({}, {"errbacks": ["tasks.on_error"]}, id="an error callback by name"),
        pytest.param({"retries": 1.0}, {}, id="retries of a sender that knows floats alone"),
    ],
)
def test_what_celery_runs_is_read(headers: dict[str, Any], embed: dict[str, Any]) -> None:
    envelope = good()
    envelope["headers"] |= headers
    body: list[Any] = [[1], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None} | embed]
    set_body(envelope, json.dumps(body).encode())
    assert refusal_of(message_of(json.dumps(envelope).encode())) is None
