"""Mutated envelopes and bodies of a keyed task, as hypothesis strategies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from celery_sticky.cli.verify.malformed import MALFORMED, Envelope, body_of, set_body, well_formed

TASK = "fuzzed"
SLOTS = 16
KEYS = 8

DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
SPECIAL = [
    "\ud800",
    10**400,
    -1,
    2**63,
    float("nan"),
    float("inf"),
    "klingon",
    DEEP,
    [[]],
    {"__type__": "x"},
    "\0",
    [{}],
]
HEADERS = [
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"),
    *("parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers"),
    *("stamps", "sticky", "compression", "headers", "delivery_info", "properties", "reply_to", "chord", "errbacks"),
    *("callbacks", "chain", "args", "kwargs", "hostname", "is_eager", "called_directly", "sticky_mark", "utc"),
]
PROPERTIES = [
    "correlation_id",
    "reply_to",
    "delivery_mode",
    "delivery_info",
    "priority",
    "body_encoding",
    "delivery_tag",
]
FIELDS = ["body", "headers", "properties", "content-type", "content-encoding"]
EMBED = ["callbacks", "errbacks", "chain", "chord", "task", "id", "retries", "sticky", "args"]

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(SPECIAL))
odd = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.text(max_size=5), scalars, max_size=2),
)


def _set(where: Callable[[Envelope], dict[str, Any]], names: list[str]) -> st.SearchStrategy[Any]:
    """Change or remove the value of one of the names."""

    def change(name: str, gone: bool, value: Any) -> Callable[[Envelope], Any]:
        def mutate(envelope: Envelope) -> None:
            part = where(envelope)
            if gone:
                part.pop(name, None)
            else:
                part[name] = value

        return mutate

    return st.builds(change, st.sampled_from(names), st.booleans(), odd)


def _body(position: int, value: Any) -> Callable[[Envelope], Any]:
    def mutate(envelope: Envelope) -> None:
        parts = body_of(envelope)
        parts[position] = value
        set_body(envelope, json.dumps(parts).encode())

    return mutate


def _embed(name: str, value: Any) -> Callable[[Envelope], Any]:
    def mutate(envelope: Envelope) -> None:
        parts = body_of(envelope)
        parts[2][name] = value
        set_body(envelope, json.dumps(parts).encode())

    return mutate


changes: st.SearchStrategy[Callable[[Envelope], Any]] = st.one_of(
    _set(lambda envelope: envelope["headers"], HEADERS),
    _set(lambda envelope: envelope["headers"]["sticky"], ["v", "key", "keyspace", "slot", "slots", "at", "hops"]),
    _set(lambda envelope: envelope["properties"], PROPERTIES),
    _set(lambda envelope: envelope, FIELDS),
    st.builds(_body, st.integers(0, 2), odd),
    st.builds(_embed, st.sampled_from(EMBED), odd),
    st.binary(max_size=30).map(lambda body: lambda envelope: set_body(envelope, body)),
    odd.map(lambda body: lambda envelope: set_body(envelope, json.dumps(body).encode())),
    st.sampled_from(sorted(MALFORMED)).map(lambda wrong: MALFORMED[wrong]),
)


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """Return a message in the format of the broker, with up to two changes."""
    key = f"key{draw(st.integers(0, KEYS - 1))}"
    envelope = well_formed(TASK, [1, "two"], key=key, slots=SLOTS)
    for change in draw(st.lists(changes, max_size=2)):
        try:
            change(envelope)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            continue  # an earlier change has removed what this one changes
    raw = json.dumps(envelope).encode()
    if draw(st.integers(0, 9)) == 0:  # a few bytes are damaged, too
        at = len(raw) * draw(st.integers(0, 999)) // 1000  # a fraction, because ids and times vary the length
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 3)) :]
    return raw
