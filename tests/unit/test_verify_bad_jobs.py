"""What verify finds of bad jobs among good ones: each may cost the process that it shares once, and is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from harness.outcomes import SECOND, fault, outcome, ran, sent
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.cli.verify.bad_jobs import MOST, Bad, bad_keys, is_bad, kind_of
from celery_sticky.cli.verify.bad_workload import MORE, PROVOKED, plan_deeds
from celery_sticky.cli.verify.job_checker import JobFindings, reach_of_jobs
from celery_sticky.cli.verify.jobs import job_keys
from celery_sticky.cli.verify.site import node
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.slot_log import SlotEvent

END = 60.0
EXIT, HANG = Bad.EXIT.key(0), Bad.HANG_START.key(0)


def want(key: str, at: float = 0.0) -> Event:
    return Event(kind=Kind.PUBLISHED, key=key, n=0, task_id=f"{key}-0", at=int(at * SECOND))


def process(pid: int, since: float, until: float, *keys: str, **options: Any) -> list[Event]:
    """Return the runs of a process in which these jobs were when it ended."""
    starts = [event for key in keys for event in ran(0, since, None, key=key, pid=pid, **options)]
    return [*starts, Event(kind=Kind.ALIVE, key="", n=0, task_id="", at=int(until * SECOND), pid=pid)]


def slots_of(worker: str, *changes: tuple[str, float], slot: int = 0) -> list[SlotEvent]:
    return [SlotEvent(what, node(worker), slot, int(at * SECOND)) for what, at in changes]


def info(key: str, *, failures: int = 0, quarantined: bool = False) -> JobInfo:
    common = {"name": "n", "keyspace": "default", "slot": 0, "payload": None, "state": "failing", "worker": ""}
    more = {"epoch": 1, "attempt": 1, "error": "", "created": 0.0, "failures": failures, "quarantined": quarantined}
    return JobInfo(key=key, id=f"{key}-0", **common, **more)  # type: ignore[arg-type]


def judged(*groups: Sequence[Event], wanted: Sequence[str] = ("j1", "j2"), **options: Any) -> JobFindings:
    events = [*map(want, wanted), *(event for group in groups for event in group)]
    found = reach_of_jobs(outcome(job_events=events, jobs_seen=END, **options))
    assert found is not None
    return found


GOOD = ("j1", "j2")
ONCE = (process(10, 0.1, 5, *GOOD, EXIT), process(11, 7, 20, *GOOD))
"""A first offence, after which the good jobs run on in the next process."""


def test_a_first_offence_explains_that_the_jobs_of_its_process_start_again() -> None:
    found = judged(*ONCE, process(12, 9, 10, EXIT), process(13, 15, 16, EXIT), process(11, 21, END, *[]))
    assert found.ok, found.accusations()
    figures = found.figures()
    assert (figures["starts"], figures["starts_minimum"], figures["first_offences"]) == (4, 4, 1)
    assert (figures["bad_jobs"], figures["bad_starts"]) == (1, 3)
    assert figures["not_running_seconds"]["bad-job"]["count"] == 2


def test_a_bad_job_that_restarts_good_ones_twice_is_found() -> None:
    found = judged(process(10, 0.1, 5, *GOOD, EXIT), process(11, 7, 12, *GOOD, EXIT), process(12, 14, END, *GOOD))
    assert found.findings()["needless_starts"] == 2, "both good jobs, once"
    assert not found.ok and "job started without need: j1" in found.accusations()[0]


def test_two_bad_jobs_may_restart_good_ones_twice_whichever_did_it_first() -> None:
    rest = process(12, 14, END, *GOOD)
    assert judged(process(10, 0.1, 5, *GOOD, EXIT, HANG), process(11, 7, 12, *GOOD, EXIT), rest).ok
    assert judged(process(10, 0.1, 5, *GOOD, EXIT, HANG), process(11, 7, 12, *GOOD, HANG), rest).ok
    third = process(12, 14, 20, *GOOD, EXIT, HANG), process(13, 22, END, *GOOD)
    twice = judged(process(10, 0.1, 5, *GOOD, EXIT, HANG), process(11, 7, 12, *GOOD, HANG), *third)
    assert twice.findings()["needless_starts"] == 2


@pytest.mark.parametrize("kind", [kind for kind in Bad if not kind.offends])
def test_a_bad_job_that_only_hurts_itself_explains_no_start_of_others(kind: Bad) -> None:
    assert (
        judged(process(10, 0.1, 5, *GOOD, kind.key(0)), process(11, 7, END, *GOOD)).findings()["needless_starts"] == 2
    )


def test_a_bad_job_explains_no_start_of_jobs_in_other_processes_and_of_none_that_has_ended() -> None:
    bad = process(10, 0.1, 5, EXIT)
    assert judged(bad, process(11, 0.1, 5, *GOOD), process(12, 7, END, *GOOD)).findings()["needless_starts"] == 2
    stopped = ran(0, 0.1, 4, key="j1", pid=10), ran(0, 5, END, key="j1", pid=11)
    assert len(judged(bad, *stopped, wanted=["j1"]).needless) == 1, "it was stopped, not killed"
    left = ran(0, 0.1, 4, key=EXIT, pid=10)
    assert judged(left, process(10, 0.1, 5, *GOOD), process(12, 7, END, *GOOD)).findings()["needless_starts"] == 2


def test_an_isolated_job_explains_no_start_of_others_and_its_failures_are_enough_to_be_seen() -> None:
    isolated: Any = {"isolated": True}
    assert judged(*ONCE, **isolated).findings()["needless_starts"] == 2
    apart = process(10, 0.1, 5, EXIT), process(11, 7, 12, EXIT), process(13, 15, END, EXIT)
    good = process(20, 0.1, END, *GOOD)
    assert judged(good, *apart, bad_jobs=[info(EXIT, failures=2)], **isolated).ok
    assert judged(good, *apart, bad_jobs=[info(EXIT)], **isolated).findings()["bad_unseen"] == 1
    assert judged(good, *apart, bad_jobs=[info(EXIT, failures=2)]).findings()["bad_unseen"] == 1, "not in quarantine"
    killed = fault("kill", 5, 11, "w1")
    kept = process(20, 1, 10, EXIT, worker="w2", slot=1)
    late = process(10, 0.1, 5, *GOOD), kept, process(11, 13, END, *GOOD, worker="w2", epoch=2)
    assert judged(*late, done=[killed]).ok and len(judged(*late, done=[killed], **isolated).late) == 2


def test_a_store_that_has_forgotten_an_offence_explains_another_one() -> None:
    twice = process(10, 0.1, 5, *GOOD, EXIT), process(11, 7, 12, *GOOD, EXIT), process(12, 14, END, *GOOD)
    assert judged(*twice, done=[fault("store-rollback", 6, 6.5)]).ok
    assert not judged(*twice, done=[fault("store-rollback", 8, 8.5)]).ok, "it knew of the first one by then"


def test_a_fault_that_explains_a_start_needs_no_offence() -> None:
    killed = process(10, 0.1, 5, *GOOD, EXIT), process(11, 9, 12, *GOOD, EXIT, worker="w2", epoch=2)
    assert judged(*killed, process(12, 14, END, *GOOD, worker="w2", epoch=2), done=[fault("kill", 5, 8, "w1")]).ok


def test_a_job_is_late_if_it_does_not_run_soon_after_the_first_offence_that_kept_it_from_running() -> None:
    killed, other = fault("kill", 5, 11, "w1"), {"worker": "w2", "epoch": 2}
    rest = process(11, 13, END, *GOOD, **other)
    assert len(judged(process(10, 0.1, 5, *GOOD), rest, done=[killed]).late) == 2
    kept = process(20, 1, 10, EXIT, worker="w2", slot=1)
    assert judged(process(10, 0.1, 5, *GOOD), kept, rest, done=[killed]).ok
    elsewhere = process(20, 1, 10, EXIT, worker="w3", slot=1)
    assert len(judged(process(10, 0.1, 5, *GOOD), elsewhere, rest, done=[killed]).late) == 2
    again = process(20, 1, 3, EXIT, worker="w2", slot=1), process(21, 4, 10, EXIT, worker="w2", slot=1)
    assert len(judged(process(10, 0.1, 5, *GOOD), *again, rest, done=[killed]).late) == 2, "it runs apart by then"


def test_a_worker_that_is_hit_after_a_first_offence_there_has_a_takeover_s_time_from_then_on() -> None:
    offence, rest = process(10, 0.1, 5, *GOOD, EXIT), process(11, 11.5, END, *GOOD, worker="w2", epoch=2)
    found = judged(offence, rest, done=[fault("kill", 6.5, 12, "w1")])
    assert found.ok, found.accusations()
    assert found.figures()["not_running_seconds"]["kill"]["count"] == 2
    frozen_elsewhere = fault("stop", 2, 9, "w3")
    assert judged(offence, rest, done=[frozen_elsewhere, fault("kill", 6.5, 12, "w1")]).figures()[
        "not_running_seconds"
    ].keys() == {"dispatch", "kill"}, "not what hit others before"
    assert len(judged(offence, rest, done=[fault("kill", 6.5, 12, "w3")]).late) == 2, "it hit another worker"
    later = process(11, 12.5, END, *GOOD, worker="w2", epoch=2)
    assert len(judged(offence, later, done=[fault("kill", 6.5, 13, "w1")]).late) == 2, "too long after the kill"
    assert len(judged(offence, later, done=[fault("kill", 11, 13, "w1")]).late) == 2, "they were late before"


def test_a_first_offence_in_a_worker_that_had_the_slot_meanwhile_prolongs_the_time() -> None:
    killed, elsewhere = fault("kill", 5, 15, "w1"), process(30, 13, END, *GOOD, worker="w3", epoch=3)
    kept = process(20, 7, 11, EXIT, worker="w2", slot=1)
    took = slots_of("w2", ("gained", 8.8)), slots_of("w3", ("gained", 12.9))
    log = [event for events in took for event in events]
    assert judged(process(10, 0.1, 5, *GOOD), kept, elsewhere, done=[killed], slot_events=log).ok
    assert len(judged(process(10, 0.1, 5, *GOOD), kept, elsewhere, done=[killed], slot_events=log[1:]).late) == 2


def test_a_first_offence_does_not_excuse_jobs_that_were_late_before() -> None:
    killed, rest = fault("kill", 5, 15, "w1"), process(11, 15, END, *GOOD, worker="w2", epoch=2)
    kept = process(20, 11.5, 13, EXIT, worker="w2", slot=1)
    assert len(judged(process(10, 0.1, 5, *GOOD), kept, rest, done=[killed]).late) == 2


def test_a_worker_that_left_for_lack_of_a_host_after_a_first_offence_may_come_back_and_take_its_slots() -> None:
    offence = process(10, 0.1, 5, *GOOD, EXIT)
    away = [ran(0, 9, 20, key=key, pid=20, worker="w2", epoch=2) for key in GOOD]
    back = process(11, 20.1, END, *GOOD, epoch=3)
    log = [*slots_of("w1", ("gained", 0), ("lost", 8.5), ("gained", 20.05)), *slots_of("w2", ("gained", 8.9))]
    assert judged(offence, *away, back, slot_events=log).ok
    others = [*log, *slots_of("w1", ("gained", 0), slot=1)]
    assert len(judged(offence, *away, back, slot_events=others).needless) == 2, "it had not left"
    innocent = ran(0, 0.1, 8, key="j1", pid=10), ran(0, 9, 20, key="j1", pid=20, worker="w2", epoch=2)
    alone = judged(*innocent, ran(0, 20.1, END, key="j1", pid=11, epoch=3), wanted=["j1"], slot_events=log)
    assert len(alone.needless) == 2, "it left without a reason"


def test_a_bad_job_does_not_run_twice_at_a_time_either() -> None:
    assert (
        judged(process(10, 0.1, END, *GOOD), process(11, 1, 5, EXIT), process(12, 4, 6, EXIT)).findings()["overlaps"]
        == 1
    )


def test_a_bad_job_that_was_bad_is_seen() -> None:
    raises, slow = Bad.RAISE.key(0), Bad.SLOW_START.key(0)
    failed = ran(0, 1, 2, key=raises, pid=10), ran(0, 4, 5, key=raises, pid=10)
    bad = (*failed, process(11, 3, 5, EXIT), process(12, 7, 9, EXIT), ran(0, 1.5, END, key=slow, pid=10))
    good = process(10, 0.1, END, *GOOD)
    seen = [info(EXIT, failures=2, quarantined=True), info(raises, failures=1), info(slow)]
    assert judged(good, *bad, bad_jobs=seen).ok
    found = judged(good, *bad, bad_jobs=[info(EXIT, failures=2), info(raises)])
    assert not found.ok and len(found.bad.unseen) == 2
    first, second = found.accusations()
    assert first == f"bad job not seen: {EXIT} ({EXIT}-0) is failing, not quarantined, with 2 failures in 1 starts"
    assert f"{raises} ({raises}-0) is failing" in second


def test_what_a_bad_job_has_not_done_yet_and_what_the_store_forgot_need_not_be_seen() -> None:
    good, unseen = process(10, 0.1, END, *GOOD), [info(EXIT)]
    bad = process(11, 3, 5, EXIT), process(12, 7, 9, EXIT)
    assert judged(good, bad_jobs=unseen).ok, "it never ran"
    assert judged(good, bad[0], bad_jobs=unseen).ok, "it runs for the first time"
    other = process(11, 3.5, 5, HANG, slot=1)
    assert judged(good, *bad, other, bad_jobs=unseen).ok, "another one may have done it"
    assert judged(good, *bad, bad_jobs=unseen, done=[fault("store-rollback", 5.5, 6)]).ok
    assert judged(good, *bad, bad_jobs=unseen, done=[fault("kill", 5, 7, "w1")]).ok, "it was killed"
    assert not judged(good, *bad, bad_jobs=unseen, done=[fault("kill", 5, 7, "w2")]).ok


def test_a_bad_job_that_cannot_be_stopped_is_found() -> None:
    left = judged(process(10, 0.1, END, *GOOD), bad_left=[EXIT])
    assert not left.ok and left.accusations() == [f"bad job not stopped: {EXIT}"]


# -- notes ---------------------------------------------------------------------------------------


def note(n: int, at: float, kind: Kind = Kind.PUBLISHED) -> Event:
    return sent(n, at, key="j1", kind=kind)


def lost(*events: Event, withdrawn: Sequence[float] = (), **options: Any) -> list[int]:
    stops = [Event(kind=Kind.WITHDRAWN, key="j1", n=0, task_id="x", at=int(at * SECOND)) for at in withdrawn]
    found = judged(process(10, 0.1, END, *GOOD), stops, note_events=events, **options)
    assert found.ok == (not found.lost_notes)
    return [event.n for event in found.lost_notes]


def test_a_note_that_was_accepted_and_that_no_run_got_is_lost() -> None:
    assert lost(note(0, 1), note(0, 2, Kind.START), note(1, 3)) == [1]
    assert lost(note(0, 1, Kind.REFUSED), note(1, 1, Kind.UNSURE)) == []


def test_a_note_to_a_job_that_is_stopped_soon_and_one_that_the_store_forgot_are_not_lost() -> None:
    assert lost(note(0, 1), withdrawn=[5]) == []
    assert lost(note(0, 1), withdrawn=[20]) == [0]
    assert lost(note(0, 10), withdrawn=[5]) == [0]
    back = fault("store-rollback", 5, 8)
    assert lost(note(0, 4), note(1, 9), done=[back]) == [1]
    late = fault("store-rollback", 35, 38)
    assert lost(note(0, 1), note(1, 30), done=[late]) == [0], "the first one had to be handled long before"


# -- the plan ------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(5, 600))
def test_each_kind_is_admitted_while_there_is_load_and_what_must_be_stopped_is(seed: int, seconds: float) -> None:
    deeds = plan_deeds(seed, seconds)
    assert deeds == plan_deeds(seed, seconds) == sorted(deeds, key=lambda deed: deed.at)
    admitted = {deed.key: deed for deed in deeds if not deed.again}
    assert {deed.kind for deed in admitted.values()} == set(Bad) and len(admitted) == len(Bad) + MORE
    assert set(admitted) <= set(bad_keys()) and all(0 < deed.at < seconds for deed in admitted.values())
    again = Counter(deed.key for deed in deeds if deed.again)
    assert again == {key: len(PROVOKED) for key, deed in admitted.items() if deed.kind.offends_when_stopped}


def test_keys_tell_bad_jobs_from_good_ones_and_their_kinds() -> None:
    assert [kind_of(key) for key in bad_keys()] == [kind for kind in Bad for _ in range(MOST)]
    assert all(map(is_bad, bad_keys())) and not any(map(is_bad, job_keys(20)))
