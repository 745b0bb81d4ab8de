"""What is written on a message, and what a task sees of it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from celery.app.task import Context

from celery_sticky.errors import InvalidKey
from celery_sticky.message import Stamp, StickyContext

STAMP = Stamp(key="foo", keyspace="default", slot=177, slots=256, at=1700000000.25)


def test_a_stamp_is_one_json_header() -> None:
    header = STAMP.to_header()
    assert header == {"v": 1, "key": "foo", "keyspace": "default", "slot": 177, "slots": 256, "at": 1700000000.25}
    assert Stamp.from_header(json.loads(json.dumps(header))) == STAMP


def test_a_stamp_may_say_more_than_is_known() -> None:
    assert Stamp.from_header(STAMP.to_header() | {"colour": "red"}) == STAMP


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"v": 2}, "upgrade celery-sticky"),
        ({"v": 0}, "does not exist"),
        ({"v": "1"}, "'v'"),
        ({"v": True}, "'v'"),
        ({"key": 5}, "got `int` - at `$.key`"),
        ({"key": ""}, "empty"),
        ({"key": "x" * 1025}, "at most"),
        ({"keyspace": None}, "got `null` - at `$.keyspace`"),
        ({"keyspace": "a.b"}, "keyspace"),
        ({"slot": 256}, "slot 256 of 256"),
        ({"slot": -1}, "slot -1 of 256"),
        ({"slot": True}, "got `bool` - at `$.slot`"),
        ({"slot": 178}, "belongs to slot 177"),
        ({"slots": 0}, "of 0"),
        ({"slots": 2**31}, "of 2147483648"),
        ({"slots": 256.0}, "got `float` - at `$.slots`"),
        ({"at": "now"}, "got `str` - at `$.at`"),
    ],
)
def test_a_forged_or_foreign_stamp_is_refused_with_its_reason(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        Stamp.from_header(STAMP.to_header() | changed)
    assert reason in str(refused.value)


@pytest.mark.parametrize("missing", ["v", "key", "keyspace", "slot", "slots", "at"])
def test_a_stamp_without_a_field_is_refused(missing: str) -> None:
    header = STAMP.to_header()
    del header[missing]
    with pytest.raises(InvalidKey, match=f"['`]{missing}['`]"):
        Stamp.from_header(header)


@pytest.mark.parametrize("header", [None, "foo", 5, ["v", 1]])
def test_what_is_no_mapping_is_no_stamp(header: Any) -> None:
    with pytest.raises(InvalidKey, match="not a mapping"):
        Stamp.from_header(header)


def test_a_task_reads_its_context_by_attribute_and_cannot_set_it_so() -> None:
    context = StickyContext.of(STAMP, epoch=7, attempt=2, worker="w1@host")
    seen = (context.key, context.keyspace, context.slot, context.epoch, context.attempt, context.worker)
    assert seen == ("foo", "default", 177, 7, 2, "w1@host")
    with pytest.raises(AttributeError):
        context.epoch = 8  # type: ignore[misc]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_context_goes_into_a_child_process_and_into_json(protocol: int) -> None:
    context = StickyContext.of(STAMP, epoch=7, attempt=2, worker="w1@host")
    there = pickle.loads(pickle.dumps({"sticky": context}, protocol))["sticky"]
    assert type(there) is StickyContext and there.epoch == 7
    assert json.loads(json.dumps(context))["epoch"] == 7


def test_a_request_carries_the_context_to_the_task() -> None:
    context = StickyContext.of(STAMP, epoch=7, attempt=2, worker="w1@host")
    assert Context({"sticky": context}).sticky.epoch == 7
