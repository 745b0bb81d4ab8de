"""What a worker thinks of a placed key: which of its messages run here, and where the others go."""

from __future__ import annotations

import pytest

from celery_sticky.delivery.key_claims import Question
from celery_sticky.placement.rules import Duty, KeyPlan, Placement
from celery_sticky.slots import Slot, WorkerQueue

MINE, OTHER = WorkerQueue("me"), WorkerQueue("you")


@pytest.mark.parametrize(
    ("placement_of", "stands", "onward"),
    [
        pytest.param(MINE, MINE, None, id="mine, in my queue"),
        pytest.param(MINE, 3, None, id="mine, in a slot of mine"),
        pytest.param(MINE, OTHER, MINE, id="mine, in the queue of a worker that is gone: nothing of that runs here"),
        pytest.param(3, 3, None, id="of a slot, and there"),
        pytest.param(3, MINE, 3, id="of a slot, in my queue"),
        pytest.param(OTHER, MINE, OTHER, id="another's, in my queue"),
        pytest.param(OTHER, OTHER, None, id="of a worker that was gone and is back, in its queue: not to its back"),
        pytest.param(None, MINE, None, id="nobody's"),
    ],
)
def test_where_a_message_goes(placement_of: int | WorkerQueue | None, stands: Slot, onward: Slot | None) -> None:
    plan = KeyPlan(Question("k", "", False, {stands}), Placement(placement_of), Duty.NONE)
    assert plan.onward(stands, MINE) == onward
