"""The step that hands messages to Celery, as far as no worker is needed to see it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace as Some
from typing import Any

import pytest

from celery_sticky.bootsteps.delivery import Delivery
from celery_sticky.ownership.events import BrokerUp


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def step(said: list[Any]) -> Iterator[Delivery]:
    courier = Some(start=lambda _: said.append("the courier starts"))
    part = Some(
        has_processes=True, runs={}, refusals=Some(), members={"default": Some(post=said.append)}, courier=courier
    )
    step = Delivery(Some(controller=Some(sticky=part), app=Some(timezone=None)))
    yield step
    step._reader.close()
    step._writer.close()


def test_members_are_told_that_the_broker_is_there_before_the_courier_may_tell_that_it_is_not(
    step: Delivery, said: list[Any]
) -> None:
    pool = Some(is_green=False)
    step.start(Some(app=Some(tasks={}), pool=pool, hub=None, event_dispatcher=None))
    assert said == [BrokerUp(), "the courier starts"]
