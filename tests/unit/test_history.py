"""The judge finds what is wrong with a history, and nothing in a history that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.testing.history import Event, Kind, MalformedHistory, parse
from celery_sticky.testing.judge import judge, takeovers


def published(n: int, key: str = "k") -> Event:
    return Event(kind=Kind.PUBLISHED, key=key, n=n, task_id=f"{key}-{n}", at=0, pid=1)


def start(n: int, at: int, *, key: str = "k", epoch: int = 1, worker: str = "w1", pid: int = 10) -> Event:
    run = f"{key}-{n}-{at}"
    return Event(
        kind=Kind.START, key=key, n=n, task_id=f"{key}-{n}", at=at, pid=pid, worker=worker, run=run, slot=3, epoch=epoch
    )


def ran(n: int, at: int, until: int, **options: object) -> list[Event]:
    begun = start(n, at, **options)  # type: ignore[arg-type]
    return [begun, replace(begun, kind=Kind.END, at=until)]


def test_a_history_in_which_all_is_well_is_ok() -> None:
    judgement = judge([published(1), published(2), *ran(1, 10, 20), *ran(2, 20, 30)])
    assert judgement.ok
    assert (judgement.published, judgement.finished, judgement.runs, judgement.keys) == (2, 2, 2, 1)
    assert judgement.duplicates == ()


def test_a_published_task_that_never_finished_is_lost() -> None:
    started = start(3, 40)
    failed = replace(start(2, 20), kind=Kind.END, at=25, finished=False)
    judgement = judge([published(1), published(2), published(3), *ran(1, 10, 20), start(2, 20), failed, started])
    assert [event.n for event in judgement.lost] == [2, 3]
    assert not judgement.ok
    assert "lost: k #2" in judgement.describe()


def test_two_runs_of_one_key_at_one_time_overlap_and_those_of_two_keys_do_not() -> None:
    assert len(judge([*ran(1, 10, 30), *ran(2, 29, 40)]).overlaps) == 1
    assert judge([*ran(1, 10, 30), *ran(2, 29, 40, key="other")]).ok


def test_a_long_run_overlaps_every_run_within_it() -> None:
    judgement = judge([*ran(1, 10, 100), *ran(2, 20, 30), *ran(3, 40, 50)])
    assert [overlap.second.start.n for overlap in judgement.overlaps] == [2, 3]


def test_a_run_without_an_end_lasts_until_its_process_died() -> None:
    events = [start(1, 10, pid=10), *ran(1, 40, 50, pid=20)]
    assert judge(events, deaths={10: 39}).overlaps == ()
    assert len(judge(events, deaths={10: 41}).overlaps) == 1


def test_a_run_without_an_end_lasts_until_the_last_sign_of_life_of_its_process_if_its_death_is_unknown() -> None:
    events = [start(1, 10, pid=10), *ran(1, 40, 50, pid=20)]
    assert judge(events).overlaps == ()
    alive = ran(7, 44, 45, key="other", pid=10)
    assert len(judge([*events, *alive]).overlaps) == 1


def test_a_task_that_first_runs_after_a_later_one_of_its_key_is_out_of_order() -> None:
    judgement = judge([*ran(1, 10, 20), *ran(3, 20, 30), *ran(2, 30, 40)])
    assert [(inversion.late.n, inversion.early.n) for inversion in judgement.inversions] == [(2, 3)]


def test_a_task_that_runs_again_later_is_a_duplicate_and_not_out_of_order() -> None:
    judgement = judge([*ran(1, 10, 20), *ran(2, 20, 30), *ran(1, 30, 40)])
    assert judgement.ok
    assert [(d.n, d.runs, d.finished) for d in judgement.duplicates] == [(1, 2, 2)]


def test_a_start_under_an_epoch_lower_than_one_seen_for_its_slot_is_stale() -> None:
    judgement = judge([*ran(1, 10, 20, epoch=1), *ran(2, 20, 30, epoch=2), *ran(3, 30, 40, epoch=1)])
    assert [(stale.start.n, stale.newest) for stale in judgement.stale] == [(3, 2)]


def test_two_workers_under_one_epoch_of_a_slot_are_told() -> None:
    judgement = judge([*ran(1, 10, 20), *ran(2, 20, 30, worker="w2", pid=11)])
    assert [shared.workers for shared in judgement.shared] == [("w1", "w2")]


def test_a_takeover_lasts_from_the_kill_to_the_first_start_elsewhere() -> None:
    events = [*ran(1, 10, 20), *ran(2, 55, 60, worker="w2", epoch=2), *ran(3, 70, 80, worker="w2", epoch=2)]
    assert takeovers(events, "w1", since=25) == {("default", 3): 30}
    assert takeovers(events, "w2", since=90) == {}


def test_a_record_torn_by_a_kill_is_left_out_wherever_it_stands() -> None:
    whole, other = start(1, 10), start(2, 20)
    for cut in range(len(whole.record()) - 2):
        torn = whole.record()[:cut]
        assert parse(other.record() + torn) == [other]
        assert parse(torn + other.record()) == [other]
        assert parse(torn + torn + other.record()) == [other]


def test_a_whole_line_that_is_no_event_is_named() -> None:
    record = start(1, 10).record()
    for wrong in ('{"kind":"start"}', "{", "3", record.strip().replace("start", "stop")):
        with pytest.raises(MalformedHistory, match="line 5"):
            parse(record + "\n\n" + wrong + "\n" + record)


names = st.text(max_size=8)
events = st.builds(
    Event,
    kind=st.sampled_from(Kind),
    key=names,
    n=st.integers(0, 10**6),
    task_id=names,
    at=st.integers(0, 2**63),
    pid=st.integers(0, 2**22),
    worker=names,
    run=names,
    keyspace=names,
    slot=st.none() | st.integers(0, 1024),
    epoch=st.none() | st.integers(0, 2**53),
    attempt=st.integers(0, 9),
    finished=st.booleans(),
)


@given(st.lists(events, max_size=5))
def test_a_history_file_reads_back_as_it_was_written(history: list[Event]) -> None:
    assert parse("".join(event.record() for event in history)) == history


@st.composite
def schedules(draw: st.DrawFn) -> list[Event]:
    """Histories that keep every promise: keys run in turn, each task once, epochs of a slot grow."""
    history: list[Event] = []
    for key in draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)):
        now, epoch = draw(st.integers(0, 50)), 1
        for n in range(draw(st.integers(1, 6))):
            until = now + draw(st.integers(1, 20))
            epoch += draw(st.booleans())
            run = [replace(e, slot=ord(key)) for e in ran(n, now, until, key=key, worker=f"w{epoch}", epoch=epoch)]
            history += [published(n, key), *run]
            now = until + draw(st.integers(0, 5))
    return history


@given(schedules(), st.randoms(use_true_random=False))
def test_a_history_that_keeps_every_promise_is_ok_however_its_lines_are_mixed(
    history: list[Event], random: object
) -> None:
    random.shuffle(history)  # type: ignore[attr-defined]
    judgement = judge(history)
    assert judgement.ok, judgement.describe()
    assert judgement.finished == judgement.published


@given(schedules(), st.data())
def test_without_the_end_of_its_only_run_exactly_that_task_is_lost(history: list[Event], data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from([event for event in history if event.kind is Kind.END]))
    judgement = judge([event for event in history if event is not victim])
    assert [event.task for event in judgement.lost] == [victim.task]


@given(schedules(), st.data())
def test_a_second_run_inside_another_of_its_key_is_always_found(history: list[Event], data: st.DataObject) -> None:
    ends = {event.run: event.at for event in history if event.kind is Kind.END}
    outer = data.draw(st.sampled_from([event for event in history if event.kind is Kind.START]))
    at = data.draw(st.integers(outer.at, ends[outer.run] - 1))
    intruder = replace(outer, run="intruder", n=outer.n, at=at, pid=99)
    judgement = judge([*history, intruder, replace(intruder, kind=Kind.END, at=at)])
    assert judgement.overlaps
