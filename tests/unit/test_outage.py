"""What is logged of a store that does not answer."""

from __future__ import annotations

import logging

import pytest

from celery_sticky.errors import StoreRefused, StoreUnavailable
from celery_sticky.platform.outage import REPEAT, Outage

ERROR = StoreUnavailable("redis://here:6379/0: TimeoutError: Timeout reading from socket")


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.INFO)
    return Outage(logging.getLogger("celery_sticky.test"), "keyspace ks", lambda now: f"It is {now:g}")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_outage_is_told_when_it_begins_with_its_meaning_and_a_remedy(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for tenth in range(100):
        outage.failed(ERROR, 5 + tenth / 10)
    [(level, text)] = said(caplog)
    assert level == "WARNING"
    assert text.startswith(f"keyspace ks: the store does not answer: {ERROR}. It is 5. Trying again")
    assert "celery sticky doctor" in text


def test_while_it_lasts_it_is_told_now_and_then(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for tenth in range(int(REPEAT * 20) + 1):
        outage.failed(ERROR, tenth / 10)
    assert [level for level, _ in said(caplog)] == ["WARNING", "ERROR", "ERROR"]
    assert said(caplog)[-1][1] == f"keyspace ks: the store has not answered for 60 s: {ERROR}. It is 60. Trying again."


def test_its_end_is_told_once_with_how_long_it_took(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.over(1.0)
    assert not said(caplog), "there was none"
    outage.failed(ERROR, 2.0)
    outage.over(44.5)
    outage.over(45.0)
    outage.failed(ERROR, 46.0)
    assert [level for level, _ in said(caplog)] == ["WARNING", "INFO", "WARNING"]
    assert said(caplog)[1][1] == "keyspace ks: the store answers again, after 42.5 s"


def test_what_fails_in_another_way_is_told_at_once_and_each_way_once(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    refused = StoreRefused("redis://here: READONLY it is a replica now")
    for tenth in range(100):
        outage.failed(ERROR if tenth % 2 else refused, tenth / 10)
    assert [text.partition(": redis")[0] for _, text in said(caplog)] == [
        "keyspace ks: the store refuses",
        "keyspace ks: the store does not answer",
    ]
