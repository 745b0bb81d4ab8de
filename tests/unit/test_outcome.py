"""How an attempt ended, from what Celery said of it."""

from __future__ import annotations

from pickle import PicklingError
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import InvalidTaskError, Reject

from celery_sticky.execution.body import NotBegun
from celery_sticky.execution.outcome import MOST_TRIES, Ending, Said, decide, may_have_run

pytestmark = pytest.mark.unit
LAST = MOST_TRIES - 1


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"acknowledged": True}, Ending.ENDED),
        ({"acknowledged": True, "error": ValueError()}, Ending.ENDED),
        ({"acknowledged": True, "retried": True}, Ending.RETRIED),
        ({"rejected": True}, Ending.REJECTED),
        ({"rejected": True, "requeue": True, "error": Reject("no", requeue=True)}, Ending.REQUEUED),
        ({"rejected": True, "requeue": True, "error": WorkerLostError()}, Ending.DIED),
        ({"rejected": True, "requeue": True, "error": TimeLimitExceeded(1)}, Ending.DIED),
        ({"rejected": True, "requeue": True, "error": SystemExit()}, Ending.DIED),
        ({"error": Reject("of a handler", requeue=True)}, Ending.REQUEUED),
        ({"error": Reject("of a handler", requeue=False)}, Ending.REJECTED),
        ({"over": True}, Ending.ENDED),
        ({"over": True, "error": ConnectionError()}, Ending.ENDED),
        ({"error": MemoryError()}, Ending.DIED),
        ({}, Ending.DIED),
        ({"dropped": True}, Ending.NOT_STARTED),
        ({"error": NotBegun("away")}, Ending.FAILED),
        ({"error": ConnectionError()}, Ending.FAILED),
        ({"error": PicklingError()}, Ending.UNREADABLE),
    ],
)
def test_what_became_of_a_reserved_start(said: dict[str, Any], outcome: Ending) -> None:
    assert decide(Said(reserved=True, **said), to_blame=lambda: True, failures=0) is outcome


@pytest.mark.parametrize(
    "said",
    [{}, {"error": WorkerLostError()}, {"rejected": True, "requeue": True, "error": Reject("lease", requeue=True)}],
)
def test_what_the_worker_ended_itself_counts_for_nothing(said: dict[str, Any]) -> None:
    assert decide(Said(reserved=True, **said), to_blame=lambda: False, failures=0) is Ending.INTERRUPTED


@pytest.mark.parametrize("error", [ConnectionError(), MemoryError(), RuntimeError("the pool is closed"), KeyError("x")])
def test_what_fails_before_the_start_is_tried_again(error: Exception) -> None:
    assert decide(Said(error=error), to_blame=lambda: True, failures=0) is Ending.FAILED


@pytest.mark.parametrize(
    ("ending", "said", "may"),
    [
        (Ending.DIED, {"reserved": True}, True),
        (Ending.DIED, {}, False),
        (Ending.INTERRUPTED, {"reserved": True}, True),
        (Ending.FAILED, {"reserved": True, "began": True, "error": ConnectionError()}, True),
        (Ending.FAILED, {"reserved": True, "began": True, "error": NotBegun("away")}, False),
        (Ending.FAILED, {"reserved": True, "error": ConnectionError()}, False),
        (Ending.NOT_STARTED, {"reserved": True, "dropped": True}, False),
        (Ending.REQUEUED, {"reserved": True, "began": True}, False),
        (Ending.ENDED, {"reserved": True, "began": True}, False),
    ],
)
def test_which_attempts_may_have_run_without_an_end(ending: Ending, said: dict[str, Any], may: bool) -> None:
    assert may_have_run(ending, Said(**said)) is may


def test_a_message_that_cannot_be_read_is_given_up_at_once() -> None:
    assert decide(Said(unreadable=True), to_blame=lambda: True, failures=0) is Ending.UNREADABLE
    assert decide(Said(error=InvalidTaskError()), to_blame=lambda: True, failures=0) is Ending.UNREADABLE


def test_an_outage_of_any_length_buries_nothing_and_an_error_over_a_value_is_given_up_in_the_end() -> None:
    assert decide(Said(error=ConnectionError()), to_blame=lambda: True, failures=10_000) is Ending.FAILED
    assert decide(Said(reserved=True, error=NotBegun("away")), to_blame=lambda: True, failures=10_000) is Ending.FAILED
    assert decide(Said(error=TypeError()), to_blame=lambda: True, failures=LAST - 1) is Ending.FAILED
    assert decide(Said(error=TypeError()), to_blame=lambda: True, failures=LAST) is Ending.UNREADABLE
    suspect = Said(reserved=True, error=NotBegun("'x' is no number", suspect=True))
    assert decide(suspect, to_blame=lambda: True, failures=LAST) is Ending.UNREADABLE
