"""What a worker thinks of a placed key: which of its messages run here, and where the others go."""

from __future__ import annotations

import pytest

from celery_sticky.delivery.key_claims import Question
from celery_sticky.keyspace import Keyspace, workers_of
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.placement.rules import Duty, KeyPlan, Placement, Scene
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


@pytest.mark.parametrize("pin", ["", "me-1", "gone-1"])
def test_by_a_fresh_document_a_key_belongs_to_nobody_yet_also_if_it_is_pinned(pin: str) -> None:
    """Guards: it was lost while other members had not seen it, and they wrote the next one while keys still ran."""
    fresh = changes.fresh(slots=4, hash="jump", generation=1, version=1, store_id="run")
    cold = changes.join(fresh, Member("me", "me-1"), settle=True)
    planned = changes.replan(cold)
    keyspace = Keyspace("ks", pins=True)

    def scene(view: View) -> Scene:
        return Scene(keyspace, 4, view, workers_of(view), "me")

    assert scene(cold).placement("k", pin).nobody
    assert not scene(planned).placement("k", pin).nobody
