"""Rules of job records that the store contracts reach only by their effects."""

from __future__ import annotations

import pytest

from celery_sticky.stores import job_rules
from celery_sticky.stores.ticks import Tick

NOW, EVERY = 10_250, 100


@pytest.mark.parametrize(
    ("last", "begins", "tick"),
    [
        (-1, 10_200, Tick(True, 0.05)),
        (10_100, 10_200, Tick(True, 0.05)),
        (10_200, 10_200, Tick(False, 0.05)),
        (10_240, 10_240, Tick(False, 0.05)),
        (99_000, 10_200, Tick(False, 0.05)),
    ],
    ids=["the first", "the next", "the same", "another length before", "a clock that was ahead"],
)
def test_one_caller_claims_a_period(last: int, begins: int, tick: Tick) -> None:
    assert job_rules.ticked(last, NOW, EVERY) == (begins, tick)


def test_a_revision_is_taken_from_the_clock_and_always_grows() -> None:
    assert job_rules.revision(5, 2.0) == 2_000_000
    assert job_rules.revision(3_000_000, 2.0) == 3_000_001
