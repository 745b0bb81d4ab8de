"""How an attempt ended, from what Celery said of it."""

from __future__ import annotations

from pickle import PicklingError
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import InvalidTaskError, Reject

from celery_sticky.execution.body import NotBegun
from celery_sticky.execution.outcome import MOST_TRIES, Outcome, Said, decide

pytestmark = pytest.mark.unit
LAST = MOST_TRIES - 1


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"acknowledged": True}, Outcome.ENDED),
        ({"acknowledged": True, "error": ValueError()}, Outcome.ENDED),
        ({"acknowledged": True, "retried": True}, Outcome.RETRIED),
        ({"rejected": True}, Outcome.REJECTED),
        ({"rejected": True, "requeue": True, "error": Reject("no", requeue=True)}, Outcome.REQUEUED),
        ({"rejected": True, "requeue": True, "error": WorkerLostError()}, Outcome.DIED),
        ({"rejected": True, "requeue": True, "error": TimeLimitExceeded(1)}, Outcome.DIED),
        ({"rejected": True, "requeue": True, "error": SystemExit()}, Outcome.DIED),
        ({"error": Reject("of a handler", requeue=True)}, Outcome.REQUEUED),
        ({"error": Reject("of a handler", requeue=False)}, Outcome.REJECTED),
        ({"over": True}, Outcome.ENDED),
        ({"over": True, "error": ConnectionError()}, Outcome.ENDED),
        ({"error": MemoryError()}, Outcome.DIED),
        ({}, Outcome.DIED),
        ({"dropped": True}, Outcome.NOT_STARTED),
        ({"error": NotBegun("away")}, Outcome.FAILED),
        ({"error": ConnectionError()}, Outcome.FAILED),
        ({"error": PicklingError()}, Outcome.UNREADABLE),
    ],
)
def test_what_became_of_a_reserved_start(said: dict[str, Any], outcome: Outcome) -> None:
    assert decide(Said(reserved=True, **said), to_blame=lambda: True, failures=0) is outcome


@pytest.mark.parametrize(
    "said",
    [{}, {"error": WorkerLostError()}, {"rejected": True, "requeue": True, "error": Reject("lease", requeue=True)}],
)
def test_what_the_worker_ended_itself_counts_for_nothing(said: dict[str, Any]) -> None:
    assert decide(Said(reserved=True, **said), to_blame=lambda: False, failures=0) is Outcome.INTERRUPTED


@pytest.mark.parametrize("error", [ConnectionError(), MemoryError(), RuntimeError("the pool is closed"), KeyError("x")])
def test_what_fails_before_the_start_is_tried_again(error: Exception) -> None:
    assert decide(Said(error=error), to_blame=lambda: True, failures=0) is Outcome.FAILED


def test_a_message_that_cannot_be_read_is_given_up_at_once() -> None:
    assert decide(Said(unreadable=True), to_blame=lambda: True, failures=0) is Outcome.UNREADABLE
    assert decide(Said(error=InvalidTaskError()), to_blame=lambda: True, failures=0) is Outcome.UNREADABLE


def test_an_outage_of_any_length_buries_nothing_and_an_error_over_a_value_is_given_up_in_the_end() -> None:
    assert decide(Said(error=ConnectionError()), to_blame=lambda: True, failures=10_000) is Outcome.FAILED
    assert decide(Said(reserved=True, error=NotBegun("away")), to_blame=lambda: True, failures=10_000) is Outcome.FAILED
    assert decide(Said(error=TypeError()), to_blame=lambda: True, failures=LAST - 1) is Outcome.FAILED
    assert decide(Said(error=TypeError()), to_blame=lambda: True, failures=LAST) is Outcome.UNREADABLE
    suspect = Said(reserved=True, error=NotBegun("'x' is no number", suspect=True))
    assert decide(suspect, to_blame=lambda: True, failures=LAST) is Outcome.UNREADABLE
