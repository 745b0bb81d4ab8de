"""Where a consumer looks in an ordinary queue."""

from __future__ import annotations

from celery_sticky.queues.sql.ranges import LAST_ID, LAST_PRIORITY, Range
from celery_sticky.transport.sql.floors import FRONT, PAUSE, SHARE, Floors

QUEUE = 5


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def places(*numbers: int, priority: int = 0) -> list[tuple[int, int, int]]:
    return [(QUEUE, priority, number) for number in numbers]


def above(number: int) -> Range:
    return Range(0, number, LAST_PRIORITY, LAST_ID)


def test_the_floor_rises_with_what_was_found_in_each_priority() -> None:
    floors = Floors()
    assert floors.ranges(QUEUE) == [FRONT]
    floors.found(QUEUE, [*places(4, 7), *places(2, priority=3)], limit=100)
    assert floors.ranges(QUEUE) == [Range(0, 7, 2, LAST_ID), Range(3, 2, LAST_PRIORITY, LAST_ID)]


def test_what_goes_back_is_above_the_floor_again() -> None:
    floors = Floors()
    floors.found(QUEUE, places(4, 7, 9), limit=100)
    floors.give_back(places(7))
    assert floors.ranges(QUEUE) == [above(6)]


def test_looks_from_the_front_take_a_small_part_of_the_time() -> None:
    clock = Clock()
    floors = Floors(clock)
    began = floors.turn()
    assert began is not None, "the first look is one"
    clock.now += 1.0
    floors.looked(began)
    assert floors.turn() is None
    clock.now += SHARE
    again = floors.turn()
    assert again is not None
    floors.looked(again)
    assert floors.turn() is None
    clock.now += PAUSE
    assert floors.turn() is not None


def test_a_queue_is_claimed_from_the_front_until_nothing_is_below_its_floor() -> None:
    floors = Floors()
    floors.found(QUEUE, places(90), limit=100)
    floors.fall_behind([QUEUE])
    assert floors.ranges(QUEUE) == [FRONT]
    floors.found(QUEUE, places(1, 2), limit=2)
    assert floors.ranges(QUEUE) == [FRONT], "there may be more of them"
    floors.found(QUEUE, places(3), limit=2)
    assert floors.ranges(QUEUE) == [above(90)]


def test_a_backlog_does_not_keep_a_queue_at_its_front() -> None:
    floors = Floors()
    floors.found(QUEUE, places(90), limit=100)
    floors.fall_behind([QUEUE])
    floors.found(QUEUE, places(91, 92), limit=2)
    assert floors.ranges(QUEUE) == [above(92)]


def test_a_look_that_finds_nothing_leaves_the_floor_where_it_was() -> None:
    floors = Floors()
    floors.found(QUEUE, places(90), limit=100)
    floors.fall_behind([QUEUE])
    floors.caught_up([QUEUE])
    assert floors.ranges(QUEUE) == [above(90)]


def test_floors_of_a_database_that_was_lost_are_forgotten() -> None:
    floors = Floors()
    floors.found(QUEUE, places(90), limit=100)
    floors.forget()
    assert floors.ranges(QUEUE) == [FRONT]
