"""Slots: numbers, worker queues and the places of keys, as types and as text."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.keys import queue_name, slot_of_queue
from celery_sticky.queues.inspection import dead_slot
from celery_sticky.slots import KeyPlace, Slot, WorkerQueue, parse_slot

NAMED = [WorkerQueue("w1@here"), WorkerQueue("@"), KeyPlace("k"), KeyPlace("=k"), KeyPlace("@w"), KeyPlace("7")]


def kind(slot: Slot) -> tuple[str, int | str]:
    match slot:
        case int(number):
            return "number", number
        case WorkerQueue(worker):
            return "worker", worker
        case KeyPlace(key):
            return "key", key


def test_a_slot_is_told_by_its_type() -> None:
    assert kind(7) == ("number", 7)
    assert kind(WorkerQueue("w1@here")) == ("worker", "w1@here")
    assert kind(KeyPlace("@w")) == ("key", "@w")


def test_its_text_is_what_is_written_everywhere() -> None:
    queue, place = WorkerQueue("w1@here"), KeyPlace("k")
    assert [queue, place] == ["@w1@here", "=k"] and {"@w1@here": 1}[queue] == 1
    assert f"{queue} {place}" == "@w1@here =k" and f"{queue!r} {place!r}" == "'@w1@here' '=k'"
    assert json.dumps({queue: place}) == '{"@w1@here": "=k"}'
    assert queue_name("ks", queue) == "sticky.ks.@w1@here"
    assert sorted({KeyPlace("b"), queue, KeyPlace("a")}) == ["=a", "=b", "@w1@here"]


@pytest.mark.parametrize("slot", NAMED)
def test_a_copy_is_the_same_slot(slot: WorkerQueue | KeyPlace) -> None:
    pickled = [pickle.loads(pickle.dumps(slot, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for found in (copy.copy(slot), copy.deepcopy(slot), *pickled):
        assert found == slot and type(found) is type(slot) and kind(found) == kind(slot)


@given(st.integers(0, 10**6) | st.text(min_size=1).map(WorkerQueue) | st.text(min_size=1).map(KeyPlace))
def test_its_text_is_read_back(slot: Slot) -> None:
    found = parse_slot(str(slot))
    assert found is not None and kind(found) == kind(slot)


@pytest.mark.parametrize("text", ["", "@", "=", "x", "-1", "1.5", " 1", "²", "\u0661", "k=1"])
def test_other_text_is_no_slot(text: str) -> None:
    assert parse_slot(text) is None


def test_the_place_of_a_key_has_no_queue() -> None:
    for slot in (7, WorkerQueue("w1@here")):
        assert slot_of_queue(queue_name("ks", slot)) == ("ks", slot) and dead_slot(f"{slot}-5") == slot
    assert slot_of_queue(queue_name("ks", KeyPlace("k"))) is None and dead_slot(f"{KeyPlace('k')}-5") is None
