"""The findings of verify on placed keys: what may have moved when, and what is promised meanwhile."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from harness.outcomes import SECOND, SLOTS, fault, outcome, ran, sent
from rich.console import Console

from celery_sticky import NoWorker
from celery_sticky.cli.verify.checker import Findings, reach
from celery_sticky.cli.verify.faults.deaths import Kill
from celery_sticky.cli.verify.job_checker import reach_of_jobs
from celery_sticky.cli.verify.moves import Change, Moves
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.placed import Placed, make_keyspace, to_pin
from celery_sticky.cli.verify.report import draw, facts
from celery_sticky.cli.verify.run import _Run
from celery_sticky.cli.verify.site import node
from celery_sticky.cli.verify.timeline import EVERYBODY
from celery_sticky.cli.verify.witness import Witness
from celery_sticky.drivers import open_placement_store, open_store
from celery_sticky.errors import StickyError, StoreUnavailable
from celery_sticky.keyspace import jump, workers_of
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.settings import Settings
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.waiting import wait_until


def view_of(*names: str, hash_name: str = "h") -> View:
    view = changes.fresh(slots=SLOTS, hash=hash_name, generation=1, version=1, store_id="s")
    for name in names:
        view = changes.join(view, Member(node(name), f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
    return view


BOTH, ALONE = view_of("w1", "w2"), view_of("w2")
KEY = next(f"k{n}" for n in range(99) if jump(f"k{n}", workers_of(BOTH)).name == node("w1"))
"""Belongs to w1, while that is there."""


def change(since: float, until: float, value: Any) -> Change[Any]:
    return Change(int(since * SECOND), int(until * SECOND), value)


def moves(*later: Change[View], pins: Sequence[Change[str]] = (), how: Placed = Placed.JUMP) -> Moves:
    seen = {KEY: [change(-9, -8, ""), *pins]}
    return Moves(make_keyspace(how), [change(-9, -8, BOTH), *later], seen)


def run_of(n: int, since: float, until: float | None, **options: Any) -> list[Event]:
    return ran(n, since, until, **{"key": KEY, "slot": None, **options})


def order(n: int, at: float, **options: Any) -> Event:
    return sent(n, at, key=KEY, **options)


def findings(*groups: Sequence[Event], moves: Moves, **options: Any) -> Findings:
    return reach(outcome(*groups, moves=moves, **options))


def found(given: Findings) -> dict[str, int]:
    """Return what is not 0 of the findings."""
    assert given.placed is not None
    figures = {**given.figures(), **given.placed.findings()}
    return {name: value for name, value in figures.items() if isinstance(value, int) and value and name != "tasks"}


def test_a_run_keeps_every_buried_message_because_the_checker_reads_them() -> None:
    for how in Placed:
        keyspace = make_keyspace(how)
        assert not Settings().declaring([keyspace]).dead_bounds_of(keyspace.name)


# -- what may have been when -----------------------------------------------------------------------


def test_a_change_may_have_come_at_any_time_between_two_looks() -> None:
    seen = moves(change(2, 3, ALONE), pins=[change(5, 6, "w2-1")])
    assert seen.of(KEY, 0, 1 * SECOND) == []
    assert seen.of(KEY, 0, 2 * SECOND) == seen.of(KEY, 3 * SECOND, 4 * SECOND) == [(2 * SECOND, 3 * SECOND)]
    assert len(seen.of(KEY, 0, 9 * SECOND)) == 2
    assert len(seen.of("another", 0, 9 * SECOND)) == 1
    assert [seen.workers(KEY, at * SECOND, at * SECOND) for at in (1, 2, 4)] == [
        {node("w1")},
        {node("w1"), node("w2")},
        {node("w2")},
    ]


def test_a_version_in_which_only_slots_have_moved_is_no_change_of_members() -> None:
    assert moves(change(2, 3, changes.raise_epoch(BOTH, 0, 7))).of(KEY, 0, 9 * SECOND) == []


def test_a_key_belongs_to_who_has_pinned_it_and_else_as_the_keyspace_says() -> None:
    pins = [change(2, 2, "w2-1"), change(4, 4, "")]
    at = (1 * SECOND, 1 * SECOND), (3 * SECOND, 3 * SECOND), (5 * SECOND, 5 * SECOND)
    assert [moves(pins=pins).workers(KEY, *when) for when in at] == [{node("w1")}, {node("w2")}, {node("w1")}]
    assert [moves(pins=pins, how=Placed.REFUSE).workers(KEY, *when) for when in at] == [{None}, {node("w2")}, {None}]
    (owner,) = moves(pins=pins, how=Placed.SLOT).workers(KEY, *at[0])
    assert owner in BOTH.owner


def test_where_unpinned_keys_are_refused_all_are_pinned_and_else_a_share_of_them() -> None:
    keys = [f"k{n}" for n in range(40)]
    assert to_pin(Placed.REFUSE, keys) == keys and len(to_pin(Placed.JUMP, keys)) == 10


# -- order -----------------------------------------------------------------------------------------

REVERSED = ([order(0, 1), order(1, 3)], run_of(1, 4, 5), run_of(0, 5, 6))


@pytest.mark.parametrize(
    ("promised", "seen"),
    [
        (True, moves()),
        (True, moves(change(6.5, 7, ALONE))),
        (True, moves(change(-2, -1, ALONE))),
        (True, moves(change(3.5, 3.6, changes.leave(BOTH, node("w2"))))),
        (False, moves(change(0.5, 0.6, changes.leave(BOTH, node("w2"))))),
        (False, moves(pins=[change(2, 2.1, "w1-1")])),
        (False, moves(pins=[change(3.5, 3.6, "w2-1"), change(3.8, 3.9, "")])),
    ],
    ids=[
        "nothing has moved",
        "only later",
        "only long before",
        "both were sent before: they move in their order",
        "the first sender did not know yet",
        "the second one was sent elsewhere",
        "there and back",
    ],
)
def test_order_is_promised_while_neither_members_nor_pin_change(promised: bool, seen: Moves) -> None:
    given = found(findings(*REVERSED, moves=seen))
    given = {name: given.get(name, 0) for name in ("out_of_order", "out_of_order_by_moves")}
    assert given == {"out_of_order": int(promised), "out_of_order_by_moves": int(not promised)}


# -- the rest --------------------------------------------------------------------------------------


def test_what_moves_in_order_and_runs_where_it_belongs_is_clean() -> None:
    seen = moves(change(2, 2.1, ALONE))
    given = findings(
        [order(0, 1), order(1, 3)], run_of(0, 1.5, 2.5), run_of(1, 3.1, 4, worker="w2", epoch=2), moves=seen
    )
    assert given.ok and given.accusations() == [] and found(given) == {"changes": 1}


def test_a_run_where_the_key_does_not_belong_is_found() -> None:
    given = findings([order(0, 1)], run_of(0, 1.5, 2, worker="w2"), moves=moves())
    assert not given.ok and found(given) == {"astray": 1} and "ran in the wrong worker" in given.accusations()[0]
    for at, astray in ((4, True), (6, False)):
        given = findings([order(0, 1)], run_of(0, 8, 9), moves=moves(change(at, at, ALONE)))
        assert bool(found(given).get("astray")) == astray, "it may just have belonged there"
    frozen = fault("stop", 2, 7, "w1")
    assert findings([order(0, 1)], run_of(0, 8, 9), moves=moves(change(1, 1, ALONE)), done=[frozen]).ok, (
        "it had no time"
    )


def test_epochs_are_those_of_the_key() -> None:
    twice = [order(0, 1), order(1, 1)], run_of(0, 1, 2, epoch=5)
    assert found(findings(*twice, run_of(1, 3, 4, epoch=4), moves=moves())) == {"stale_epoch": 1}
    other = sent(0, 1, key="another"), ran(0, 3, 4, key="another", slot=None, epoch=4)
    assert "stale_epoch" not in found(findings(*twice, run_of(1, 3, 4, epoch=6), [other[0]], other[1], moves=moves()))


def test_what_was_refused_is_not_accepted_and_must_not_run() -> None:
    refused, unpinned = order(0, 1, kind=Kind.REFUSED), moves(how=Placed.REFUSE)
    given = findings([refused], moves=unpinned)
    assert given.ok and found(given) == {"refused": 1} and given.judged.published == 0
    assert found(findings([refused], run_of(0, 1.5, 2), moves=unpinned))["refused_and_run"] == 1


def test_what_belongs_to_a_worker_is_refused_only_while_a_server_is_hurt() -> None:
    refused = order(0, 1, kind=Kind.REFUSED)
    given = findings([refused], moves=moves())
    assert not given.ok and found(given) == {"refused": 1, "refused_in_vain": 1}
    assert findings([refused], moves=moves(), done=[fault("store-rollback", 0, 2, EVERYBODY)]).ok
    assert findings([refused], moves=moves(pins=[change(0.9, 1, "w1-1")], how=Placed.REFUSE)).ok, "not known yet"


def test_a_pin_that_a_worker_has_lost_untold_is_found() -> None:
    pin = Event(kind=Kind.START, key=KEY, n=0, task_id="", at=0, worker=node("w1"))
    given = findings([order(0, 1)], run_of(0, 1.5, 2), moves=moves(), untold=[pin])
    assert not given.ok and found(given) == {"pins_lost_untold": 1}


def test_a_task_may_be_buried_for_its_key_only_while_that_is_not_pinned() -> None:
    reason = f"key {KEY!r} of keyspace 'placed' is pinned by no live worker"
    for pins, lost in (([change(0, 0.1, "w1-1"), change(5, 5.1, "")], False), ([change(-1, -0.9, "w1-1")], True)):
        made = outcome([order(0, 1)], moves=moves(pins=pins, how=Placed.REFUSE))
        given = reach(replace(made, buried={f"{KEY}-0": reason}))
        assert given.ok != lost and ("lost" in found(given)) == lost
        assert found(given).get("buried_unpinned", 0) == (not lost)


def test_what_the_error_of_a_sender_says_of_its_task(tmp_path: Any) -> None:
    recorder = Recorder(tmp_path / "history")
    for error in (NoWorker("nobody is there"), OSError("the broker has not answered"), None):
        try:
            with recorder.sending(KEY, 0, "id", sender=0):
                if error is not None:
                    raise error
        except (NoWorker, OSError):
            pass
    assert [event.kind for event in recorder.events()] == [Kind.REFUSED, Kind.UNSURE, Kind.PUBLISHED]


def test_figures_and_tables_are_those_of_keys() -> None:
    seen = moves(change(5, 5.1, ALONE))
    there: Any = {"worker": "w2", "pid": 20, "epoch": 2}
    runs = run_of(0, 1.5, None), run_of(0, 6, 7, **there), run_of(1, 7, 8, **there)
    made = outcome([order(0, 1), order(1, 1.5)], *runs, moves=seen, done=[fault("kill", 2, 7, "w1")])
    given = json.loads(json.dumps(facts(made, reach(made))))
    assert given["ok"] and given["figures"]["takeover_seconds"] == {"p50": 4.0, "p99": 4.0, "max": 4.0}
    assert given["figures"]["moved_share"] is None and given["options"]["placed"] == "jump"
    console = Console(file=io.StringIO(), width=150)
    for part in draw(given):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    assert "runs in a worker to which the key did not belong" in console.file.getvalue()


# -- jobs ------------------------------------------------------------------------------------------

END = 30.0


def of_jobs(*spells: tuple[float, float, str, int], moves: Moves, **options: Any) -> dict[str, int]:
    """Return what is not 0 of the findings on a job that ran so: from when, until when, where, under which epoch."""
    wanted = Event(kind=Kind.PUBLISHED, key=KEY, n=0, task_id=f"{KEY}-0", at=0)
    runs = [e for a, b, where, epoch in spells for e in run_of(0, a, b, worker=where, pid=int(where[1:]), epoch=epoch)]
    found = reach_of_jobs(outcome(job_events=[wanted, *runs], jobs_seen=END, moves=moves, **options))
    assert found is not None
    return {name: value for name, value in found.findings().items() if value and name != "wanted"}


def test_a_job_may_start_again_if_its_key_has_belonged_elsewhere_meanwhile() -> None:
    again = (0.0, 5.0, "w1", 1), (5.2, END + 1, "w1", 2)
    assert of_jobs(*again, moves=moves()) == {"needless_starts": 1}
    assert of_jobs(*again, moves=moves(pins=[change(4.9, 5, "w2-1"), change(5.1, 5.2, "")])) == {}
    assert of_jobs(*again, moves=moves(pins=[change(4.9, 5, "w1-1")])) == {"needless_starts": 1}
    elsewhere = (0.0, 5.0, "w1", 1), (5.2, END + 1, "w2", 2)
    assert of_jobs(*elsewhere, moves=moves(change(4.9, 5, ALONE))) == {}
    assert of_jobs(*elsewhere, moves=moves()) == {"needless_starts": 1}


def test_two_epochs_of_a_key_are_in_order_and_each_is_of_one_worker() -> None:
    moved = moves(change(4.9, 5, ALONE))
    assert of_jobs((0.0, 5.0, "w1", 2), (5.2, END + 1, "w2", 1), moves=moved) == {"stale_epoch": 1}
    assert of_jobs((0.0, 5.0, "w1", 1), (5.2, END + 1, "w2", 1), moves=moved) == {"stale_epoch": 1}


def test_the_time_without_a_job_counts_from_when_its_key_was_pinned_last() -> None:
    late = (0.0, 5.0, "w1", 1), (13.0, END + 1, "w2", 2)
    killed = fault("kill", 5, 11, "w1")
    assert of_jobs(*late, moves=moves(change(9, 9.1, ALONE)), done=[killed]) == {"late": 1}
    assert of_jobs(*late, moves=moves(change(9, 9.1, ALONE), pins=[change(8, 8.1, "w2-1")]), done=[killed]) == {}
    eviction = [change(-5, -4, "w1-1"), change(9, 9.1, "")]
    assert of_jobs(*late, moves=moves(change(9, 9.1, ALONE), pins=eviction), done=[killed]) == {"late": 1}


def test_a_job_whose_key_nobody_has_pinned_waits_and_is_not_lost() -> None:
    stopped = (0.0, 20.0, "w1", 1)
    pins = [change(-1, -1, "w1-1"), change(19.9, 20, "")]
    assert of_jobs(stopped, moves=moves(pins=pins, how=Placed.REFUSE)) == {}
    assert of_jobs(stopped, moves=moves(pins=pins)) == {"lost": 1}


# -- the witness -----------------------------------------------------------------------------------


def test_the_witness_sees_members_and_pins_change() -> None:
    keyspace = make_keyspace(Placed.SLOT)
    url = "memory://witness"
    store, placement_store = open_store(url, keyspace.name), open_placement_store(url, keyspace.name)
    member = Member(node("w1"), "w1-1", attributes={HAS_WORKER_QUEUE: "1"})
    first = changes.fresh(slots=SLOTS, hash=keyspace.hash_name, generation=1, version=1, store_id=store.read().store_id)
    assert store.swap(None, first)
    witness = Witness(open_placement_store(url, keyspace.name), Moves(keyspace), [KEY])
    placement_store.enlist(member.name, member.incarnation)
    assert store.swap(first, changes.join(first, member))
    wait_until(lambda: len(witness.moves.of(KEY, 0, 1 << 63)) == 1, 10, "it has seen a member join")
    placement_store.pin(member.name, KEY, take=False)
    wait_until(lambda: len(witness.moves.of(KEY, 0, 1 << 63)) == 2, 10, "it has seen a key pinned")
    witness.close()
    (joined, pinned) = witness.moves.of(KEY, 0, 1 << 63)
    assert joined[0] < joined[1] <= pinned[1] and witness.moves.pins[KEY][-1].value == "w1-1"


def test_a_store_that_does_not_say_who_has_pinned_what_has_not_said_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away:
        def store(self, _: str) -> NoReturn:
            raise StoreUnavailable("no answer")

    observer = Observer.__new__(Observer)
    observer._session, observer._site = cast("Any", Away()), cast("Any", SimpleNamespace(keyspace="k", pinned=("key",)))
    assert observer.untold([]) is None
    run = _Run.__new__(_Run)
    run._observer, run._run_options = observer, RunOptions(faults=(Kill,))
    run._cluster = cast("Any", SimpleNamespace(site=observer._site, workers={}))
    monkeypatch.setattr("celery_sticky.cli.verify.run.TELLING", 0.0)
    with pytest.raises(StickyError, match="did not return the pins"):
        run._untold()
