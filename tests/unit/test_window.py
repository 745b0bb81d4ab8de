import pytest

from celery_sticky.worker.window import LASTS, LEAST, MOST, Window

pytestmark = pytest.mark.unit


def test_a_pool_that_runs_dry_though_there_is_more_gets_more_at_hand() -> None:
    window = Window()
    for _ in range(10):
        window.brought(more=True)
        window.asked(1.0, dry=True)
    assert window.ahead == MOST


def test_messages_that_come_one_by_one_are_not_kept_at_hand() -> None:
    window = Window()
    for now in range(100):
        window.asked(now / 1000, dry=True)
        window.brought(more=False)
    assert window.ahead == LEAST


def test_it_shrinks_once_what_was_asked_for_lasts() -> None:
    window = Window()
    window.brought(more=True)
    window.asked(1.0, dry=True)
    window.asked(1.0 + LASTS / 2, dry=False)
    assert window.ahead == 2 * LEAST
    window.asked(1.0 + LASTS * 2, dry=False)
    assert window.ahead == LEAST
