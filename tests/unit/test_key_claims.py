"""Which keys a worker may run: entries of a placed keyspace in the delivery state, against the memory broker."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from kombu.utils.limits import TokenBucket

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.key_claims import HELD_FIRST, REVIEW
from celery_sticky.delivery.state import MOST_HOPS, DeliveryState, End
from celery_sticky.delivery.state import Item as DeskItem
from celery_sticky.envelope import parse
from celery_sticky.errors import AssignmentFailed, NotPinned
from celery_sticky.message import STAMP_HEADER
from celery_sticky.queues.base import Outcome, Tag
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.slots import Slot, WorkerQueue

KS, MINE, DEAD, OTHER = "ks", WorkerQueue("me"), WorkerQueue("dead"), WorkerQueue("you")
NOW = 1000.0
ACK = End(Outcome.ACK)


class Worker:
    """A delivery state whose courier does everything at once; messages are `<key><n>`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker, self.queues = broker, MemoryQueues(broker)
        self.delivery_state = DeliveryState(
            lambda *_: None, worker="w", concurrency=lambda: 4, max_waiting=100, max_attempts=3
        )
        self.claims = self.delivery_state.claims
        self.claims.serve(KS, "me-1", MINE)
        self.open(MINE)

    def open(self, slot: Slot, epoch: int = 1, incarnation: str = "me-1") -> None:
        self.delivery_state.slots.open((KS, slot), epoch, incarnation)
        self._open_all()

    def reconnect(self) -> None:
        self.queues = MemoryQueues(self.broker)
        self.delivery_state.connected(NOW)
        self._open_all()

    def _open_all(self) -> None:
        while openings := self.delivery_state.slots.openings():
            for opening, answer in zip(openings, self.queues.open(openings), strict=True):
                self.delivery_state.slots.answered(opening.tenure, answer, NOW)

    def turn(self) -> None:
        fetched = self.queues.fetch(
            self.delivery_state.wants(NOW, company=True), self.delivery_state.dispositions(NOW + 60), NOW
        )
        self.delivery_state.take_in(fetched, NOW)
        for delivery in fetched.deliveries:
            envelope = parse(delivery.body)
            stamp = envelope.headers[STAMP_HEADER]
            base = stamp.get("starts")
            attempts = delivery.attempts if base is None else (delivery.attempts or 0) + base
            slot = (KS, delivery.tenure.slot)
            entry = Entry(slot, delivery.tag, stamp["key"], DeskItem(delivery, envelope), attempts)
            entry.claim, entry.base = (KS, stamp["key"]), base or 0
            self.delivery_state.admit(entry, None, NOW)

    def start(self) -> dict[str, Entry]:
        started = {}
        for entry in self.delivery_state.take(10, lambda _: True):
            assert self.delivery_state.gate.start(entry, entry.turn, trusted=True)
            started[entry.content.envelope.task_id] = entry
        return started

    def asked(self, now: float = NOW) -> list[str]:
        return [question.key for question in self.claims.questions(KS, now, 100)]

    def grant(self, key: str, token: int = 7) -> None:
        self.claims.asking(KS, [key])
        self.claims.granted(KS, key, token, NOW)

    def move_all(self, key: str, to: Slot) -> None:
        for entry in self.claims.unstarted(KS, key):
            self.delivery_state.move(entry, to, NOW)


def publish(broker: MemoryBroker, slot: Slot, *names: str, **stamp: Any) -> None:
    for name in names:
        headers = {"task": "t", "id": name, STAMP_HEADER: {"key": name[0], **stamp}}
        envelope = {"headers": headers, "properties": {"body_encoding": "base64"}, "body": "W10="}
        broker.publish((KS, slot), json.dumps(envelope).encode())


def standing(broker: MemoryBroker, slot: Slot) -> list[str]:
    return [json.loads(message.body)["headers"]["id"] for message in broker.slot(KS, slot).waiting]


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    publish(broker, MINE, "a1", "b1", "a2")
    return broker


@pytest.fixture
def worker(broker: MemoryBroker) -> Worker:
    worker = Worker(broker)
    worker.turn()
    return worker


def test_nothing_of_a_key_starts_before_it_is_claimed(worker: Worker) -> None:
    assert worker.start() == {} and worker.asked() == ["a", "b"]
    worker.grant("a", 7)
    started = worker.start()
    assert list(started) == ["a1"] and started["a1"].token == 7
    worker.delivery_state.end(started["a1"], ACK, NOW)
    worker.turn()
    assert list(worker.start()) == ["a2"], "under the same claim"


def test_what_waits_for_a_claim_does_not_use_up_the_window(worker: Worker) -> None:
    assert (worker.delivery_state.gate.runnable, worker.delivery_state.gate.waiting) == (0, 3)
    worker.grant("a")
    assert (worker.delivery_state.gate.runnable, worker.delivery_state.gate.waiting) == (1, 2)


def test_a_key_is_given_back_when_nothing_of_it_is_left_here(worker: Worker) -> None:
    worker.grant("a")
    for name in ("a1", "a2"):
        assert worker.claims.to_release(KS) == []
        worker.delivery_state.end(worker.start()[name], ACK, NOW)
        worker.turn()
    assert worker.claims.to_release(KS) == ["a"]
    worker.claims.released(KS, ["a"])
    assert worker.claims.to_release(KS) == [] and worker.asked() == ["b"]


def test_a_key_that_comes_back_before_it_is_given_back_is_claimed_again(worker: Worker, broker: MemoryBroker) -> None:
    worker.grant("b")
    worker.delivery_state.end(worker.start()["b1"], ACK, NOW)
    worker.turn()
    assert worker.claims.to_release(KS) == ["b"]
    publish(broker, MINE, "b2")
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    assert worker.start() == {}, "the request may be on its way"
    assert worker.claims.to_release(KS) == [] and "b" in worker.asked()


def test_messages_that_belong_elsewhere_go_there_in_their_order_and_lock_nothing(
    worker: Worker, broker: MemoryBroker
) -> None:
    publish(broker, OTHER, "a0")
    worker.move_all("a", OTHER)
    assert standing(broker, OTHER) == ["a0"], "not before the broker is told"
    worker.turn()
    assert standing(broker, OTHER) == ["a0", "a1", "a2"]
    assert not broker.slot(KS, MINE).flight.keys() - {Tag(2, "me-1.1.1.@me")} and worker.delivery_state.gate.keys == 1
    hops = [json.loads(m.body)["headers"][STAMP_HEADER].get("hops") for m in broker.slot(KS, OTHER).waiting]
    assert hops == [None, 1, 1]


def test_what_runs_stays_and_what_waits_behind_it_goes(worker: Worker, broker: MemoryBroker) -> None:
    worker.grant("a")
    started = worker.start()
    started["a1"].began = True
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["a2"]
    assert worker.claims.to_release(KS) == [], "a1 runs"
    worker.delivery_state.end(started["a1"], ACK, NOW)
    worker.turn()
    assert worker.claims.to_release(KS) == ["a"]


def test_what_waits_behind_a_run_that_has_not_begun_stays_behind_it(worker: Worker, broker: MemoryBroker) -> None:
    """Guards: a worker stood still between a start and its run, lost its trust, and passed the later one on first."""
    worker.grant("a")
    started = worker.start()
    worker.claims.reviewed(KS, "a", NOW, elsewhere=True)
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == []
    worker.delivery_state.again(started["a1"], NOW, counted=False)
    assert worker.start() == {}, "the key belongs elsewhere"
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["a1", "a2"]


def test_what_waits_behind_a_rate_limit_stays_behind_it(worker: Worker, broker: MemoryBroker) -> None:
    worker.delivery_state.gate.limit({"": TokenBucket(1)})
    worker.grant("a")
    assert worker.start() == {}, "nobody has given it a token"
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["a1", "a2"]


def test_a_claimed_key_is_looked_at_again_and_then_takes_no_more(worker: Worker, broker: MemoryBroker) -> None:
    worker.grant("a")
    worker.start()
    assert "a" not in worker.asked(NOW + REVIEW - 0.1) and "a" in worker.asked(NOW + REVIEW)
    worker.claims.reviewed(KS, "a", NOW, elsewhere=True)
    publish(broker, MINE, "a3")
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    (late,) = [e for e in worker.claims.unstarted(KS, "a") if e.content.envelope.task_id == "a3"]
    assert late.pending and "a" in worker.asked()
    worker.claims.reviewed(KS, "a", NOW, elsewhere=False)
    assert not late.pending


def test_nothing_of_a_dead_workers_queue_runs_here(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    publish(broker, DEAD, "c1", "a9")
    worker.open(DEAD)
    worker.turn()
    worker.grant("c")
    worker.grant("a")
    assert list(worker.start()) == ["a1"]
    assert [q.slots for q in worker.claims.questions(KS, NOW + REVIEW, 9) if q.key == "c"] == [{DEAD}]
    worker.move_all("c", MINE)
    worker.turn()
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    assert list(worker.start()) == ["c1"]


def test_as_another_incarnation_every_key_is_claimed_again(worker: Worker) -> None:
    worker.grant("a")
    worker.delivery_state.slots.close((KS, MINE))
    worker.claims.serve(KS, "me-2", MINE)
    worker.open(MINE, 2, "me-2")
    worker.turn()
    assert worker.start() == {} and set(worker.asked()) == {"a", "b"}


def test_a_run_that_came_to_no_end_needs_the_claim_again(worker: Worker) -> None:
    worker.grant("a")
    started = worker.start()
    worker.claims.serve(KS, "me-2", MINE)
    worker.delivery_state.again(started["a1"], NOW, counted=False)
    assert worker.start() == {}
    worker.grant("a", 9)
    assert [entry.token for entry in worker.start().values()] == [9]


def test_a_run_that_came_to_no_end_waits_where_members_have_changed_while_it_ran(
    worker: Worker, broker: MemoryBroker
) -> None:
    """Guards: nothing was asked of its key meanwhile, for nothing of it was left to start."""
    worker.grant("b")
    worker.claims.review(KS)
    started = worker.start()
    worker.delivery_state.again(started["b1"], NOW, counted=False)
    assert worker.start() == {} and worker.asked(NOW + 0.1) == ["a", "b"]
    worker.claims.reviewed(KS, "b", NOW, elsewhere=False)
    started = worker.start()
    assert list(started) == ["b1"] and started["b1"].token == 7, "it belongs here still"
    worker.claims.review(KS)
    worker.delivery_state.again(started["b1"], NOW, counted=False)
    worker.claims.reviewed(KS, "b", NOW, elsewhere=True)
    assert worker.start() == {}
    worker.move_all("b", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["b1"]


def test_after_so_many_hops_a_message_is_buried(broker: MemoryBroker) -> None:
    publish(broker, MINE, "z1", hops=MOST_HOPS - 1, seen="")
    publish(broker, MINE, "z2", hops=MOST_HOPS, seen="")
    worker = Worker(broker)
    worker.turn()
    worker.move_all("z", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["z1"]
    (dead,) = worker.queues.dead(KS)
    assert "disagree" in json.loads(dead.info)["reason"]
    assert [(e.task_id, type(error)) for e, error in worker.delivery_state.refused] == [("z2", AssignmentFailed)]


def test_starts_are_counted_through_all_the_queues_a_message_goes_through(broker: MemoryBroker) -> None:
    publish(broker, DEAD, "p1")
    worker = Worker(broker)
    for life in range(3):
        queues = broker.slot(KS, DEAD)
        assert queues.waiting, life
        worker.open(DEAD, epoch=2 * life + 1, incarnation=f"x-{life}")
        worker.turn()  # in flight with one that dies
        worker.delivery_state.slots.close((KS, DEAD))
        worker.open(DEAD, epoch=2 * life + 2)
        worker.turn()
        worker.move_all("p", OTHER)
        worker.turn()
        stamp = json.loads(broker.slot(KS, OTHER).waiting[0].body)["headers"][STAMP_HEADER]
        assert stamp["starts"] == 0, "found in flight, but not marked"
        broker.publish((KS, DEAD), broker.slot(KS, OTHER).lists[0].pop().body)


def test_a_mark_counts_what_was_counted_elsewhere(broker: MemoryBroker) -> None:
    publish(broker, MINE, "q1", starts=1)
    publish(broker, MINE, "r1", starts=2)
    worker = Worker(broker)
    worker.turn()
    worker.grant("q")
    worker.grant("r")
    assert worker.start() == {}, "they are marked first"
    worker.turn()
    worker.turn()
    started = worker.start()
    assert list(started) == ["q1"]
    worker.delivery_state.end(started["q1"], ACK, NOW)
    worker.turn()
    worker.turn()
    (dead,) = worker.queues.dead(KS)
    assert json.loads(dead.info)["id"] == "r1", "three starts are the limit"


def test_a_mark_and_a_move_of_one_message_that_go_together_are_both_answered(broker: MemoryBroker) -> None:
    """Guards: the mark was lost on its way, and meanwhile it was decided that the message goes elsewhere."""
    publish(broker, MINE, "q1", starts=1)
    worker = Worker(broker)
    worker.turn()
    worker.grant("q")
    (mark,) = worker.delivery_state.dispositions(NOW)
    assert mark.outcome is Outcome.COUNT_START
    worker.move_all("q", OTHER)
    worker.reconnect()
    worker.turn()
    assert standing(broker, OTHER) == [], "it is decided about again"
    worker.move_all("q", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["q1"]
    assert worker.claims.to_release(KS) == ["q"], "nothing of it is left here"


def test_a_message_that_no_queue_takes_is_buried_with_its_reason(worker: Worker) -> None:
    for entry in worker.claims.unstarted(KS, "a"):
        worker.delivery_state.refuse(entry, NotPinned("pinned by nobody"), NOW)
    assert not worker.delivery_state.refused, "the broker has to confirm it: else another may run it"
    worker.turn()
    assert [(e.task_id, str(error)) for e, error in worker.delivery_state.refused] == [
        (f"a{n}", "pinned by nobody") for n in "12"
    ]
    assert [json.loads(dead.info)["reason"] for dead in worker.queues.dead(KS)] == ["pinned by nobody"] * 2
    assert worker.claims.to_release(KS) == [] and len(worker.claims) == 1


def test_a_key_in_doubt_starts_nothing_more_until_it_was_asked_about_again(
    worker: Worker, broker: MemoryBroker
) -> None:
    worker.grant("a")
    started = worker.start()
    assert list(started) == ["a1"] and worker.asked() == ["b"]
    worker.claims.doubt(KS, "a")
    worker.claims.doubt(KS, "unknown")
    worker.delivery_state.end(started["a1"], ACK, NOW)
    publish(broker, MINE, "a3")
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    worker.turn()
    assert worker.start() == {} and "a" in worker.asked()
    worker.claims.reviewed(KS, "a", NOW, elsewhere=False)
    assert list(worker.start()) == ["a2"], "it belongs here still"


def test_a_refusal_that_the_broker_refuses_is_told_when_the_message_is_back_and_buried(
    worker: Worker, broker: MemoryBroker
) -> None:
    (entry,) = worker.claims.unstarted(KS, "b")
    worker.delivery_state.refuse(entry, NotPinned("pinned by nobody"), NOW)
    other = Worker(broker)
    other.claims.serve(KS, "you-1", MINE)
    other.open(MINE, epoch=2, incarnation="you-1")
    worker.delivery_state.slots.close((KS, MINE))
    worker.turn()
    assert not worker.delivery_state.refused and not worker.queues.dead(KS)
    worker.open(MINE, epoch=3)
    worker.turn()
    worker.turn()
    assert [(e.task_id, str(error)) for e, error in worker.delivery_state.refused] == [("b1", "pinned by nobody")]
    assert len(worker.queues.dead(KS)) == 1


@pytest.mark.parametrize("fetched", [True, False])
def test_what_was_to_be_passed_on_waits_behind_what_the_broker_has_back(broker: MemoryBroker, fetched: bool) -> None:
    """Guards: a broker goes on with a copy in which an earlier message of the key stands where it was passed on from.

    `fetched`: the copy is of a moment when the messages had been fetched.
    """
    worker, copy = Worker(broker), deepcopy(broker.slots)
    worker.turn()
    copy = deepcopy(broker.slots) if fetched else copy
    first, second = worker.claims.unstarted(KS, "a")
    worker.delivery_state.move(first, OTHER, NOW)
    worker.turn()
    assert standing(broker, OTHER) == ["a1"]
    worker.delivery_state.move(second, OTHER, NOW)
    broker.slots = copy
    worker.reconnect()
    for _ in range(3):
        worker.turn()
    assert standing(broker, OTHER) == []
    assert [entry.content.envelope.task_id for entry in worker.claims.unstarted(KS, "a")] == ["a1", "a2"]
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(broker, OTHER) == ["a1", "a2"]


def test_hops_for_the_sake_of_other_members_or_another_pin_do_not_add_up(broker: MemoryBroker) -> None:
    """Guards: a message that waits while its key is pinned here and there, again and again, is not buried."""
    publish(broker, MINE, "z1", hops=MOST_HOPS, seen="1 7 me-1")
    worker = Worker(broker)
    worker.turn()
    (entry,) = worker.claims.unstarted(KS, "z")
    worker.delivery_state.move(entry, OTHER, NOW, "1 7 you-1")
    worker.turn()
    (moved,) = broker.slot(KS, OTHER).waiting
    stamp = json.loads(moved.body)["headers"][STAMP_HEADER]
    assert (stamp["hops"], stamp["seen"]) == (1, "1 7 you-1") and not worker.queues.dead(KS)


def test_a_key_that_another_worker_has_claimed_is_asked_of_less_and_less_often(worker: Worker) -> None:
    """Guards: the store is not asked twenty times a second for as long as a long task runs elsewhere."""
    now, asked = NOW, []
    while now < NOW + 30:
        if "a" in worker.asked(now):
            asked.append(now)
            worker.claims.held(KS, "a", now)
        now += 0.01
    assert len([at for at in asked if at < NOW + 0.5]) >= 8, "what is short is not waited for much longer"
    assert 20 <= len([at for at in asked if at >= NOW + 10]) <= 21
    worker.claims.review(KS)
    assert "a" in worker.asked(now), "at once when the members have changed"
    worker.grant("a")
    worker.claims.ask_at(KS, "a", 0.0)
    worker.claims.held(KS, "a", now)
    assert "a" in worker.asked(now + HELD_FIRST), "the next wait is another one"


# -- jobs -----------------------------------------------------------------------------------------


def test_a_key_is_claimed_for_a_job_and_kept_for_as_long_as_it_is_here(worker: Worker) -> None:
    worker.claims.want_job(KS, "j", "pin-1")
    (question,) = [one for one in worker.claims.questions(KS, NOW, 9) if one.key == "j"]
    assert (question.pin, question.claimed, list(question.slots), question.job) == ("pin-1", False, [], True)
    worker.grant("j", 9)
    assert worker.claims.hold_job(KS, "j") == 9
    assert "j" not in worker.asked(NOW + 10 * REVIEW) and worker.claims.to_release(KS) == []
    worker.claims.leave_job(KS, "j")
    assert worker.claims.to_release(KS) == ["j"]


def test_a_key_that_is_claimed_for_jobs_alone_is_not_gone_through_again_and_again(worker: Worker) -> None:
    before = len(worker.claims)
    for i in range(100):
        worker.claims.want_job(KS, f"j{i}", "")
        worker.grant(f"j{i}")
        worker.claims.hold_job(KS, f"j{i}")
    assert len(worker.claims) == before


def test_tasks_run_under_the_claim_of_a_job_and_the_other_way_round(worker: Worker, broker: MemoryBroker) -> None:
    worker.claims.want_job(KS, "c", "")
    worker.grant("c", 5)
    worker.claims.hold_job(KS, "c")
    publish(broker, MINE, "c1")
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    started = worker.start()
    assert started["c1"].token == 5, "without being asked of again"
    worker.claims.leave_job(KS, "c")
    assert worker.claims.to_release(KS) == [], "c1 runs"
    worker.claims.want_job(KS, "c", "")
    (question,) = [one for one in worker.claims.questions(KS, NOW, 9) if one.key == "c"]
    assert question.claimed and worker.claims.hold_job(KS, "c") == 5
    worker.delivery_state.end(started["c1"], ACK, NOW)
    worker.turn()
    assert worker.claims.to_release(KS) == [], "the job runs"
    worker.claims.leave_job(KS, "c")
    assert worker.claims.to_release(KS) == ["c"]


def test_a_task_of_a_key_with_jobs_waits_where_members_have_changed_before_it_came(
    worker: Worker, broker: MemoryBroker
) -> None:
    worker.claims.want_job(KS, "c", "")
    worker.grant("c", 5)
    worker.claims.hold_job(KS, "c")
    worker.claims.review(KS)
    publish(broker, MINE, "c1")
    worker.delivery_state.rounds.note([(KS, MINE)])
    worker.turn()
    assert worker.start() == {} and "c" in worker.asked()
    worker.claims.reviewed(KS, "c", NOW, elsewhere=False)
    assert worker.start()["c1"].token == 5, "it belongs here still"


def test_a_job_that_is_not_to_run_here_after_all_leaves_nothing_but_what_was_asked(worker: Worker) -> None:
    for key in ("j1", "j2"):
        worker.claims.want_job(KS, key, "")
    worker.claims.asking(KS, ["j2"])
    for key in ("j1", "j2", "never wanted"):
        worker.claims.leave_job(KS, key)
    assert worker.claims.to_release(KS) == ["j2"] and not {"j1", "j2"} & set(worker.asked())


def test_a_key_is_busy_while_a_task_of_it_runs_or_is_the_next_to_run(worker: Worker) -> None:
    assert worker.claims.busy(KS, ["a", "b"]) == set(), "its messages only wait for the claim"
    worker.grant("a")
    assert worker.claims.busy(KS, ["a", "b"]) == {"a"}
    first = worker.start()["a1"]
    assert worker.claims.busy(KS, ["a", "b"]) == {"a"}
    worker.claims.doubt(KS, "a")  # so that the other message waits
    worker.delivery_state.end(first, ACK, NOW)
    assert worker.claims.busy(KS, ["a", "b"]) == {"a"}, "its disposition is not confirmed"
    worker.turn()
    assert worker.claims.busy(KS, ["a", "b"]) == set()


def test_as_another_incarnation_no_key_is_held_for_jobs(worker: Worker) -> None:
    for key in ("a", "j"):
        worker.claims.want_job(KS, key, "")
        worker.grant(key)
        worker.claims.hold_job(KS, key)
    worker.claims.want_job(KS, "waits", "")
    assert sorted(worker.claims.serve(KS, "me-2", MINE)) == ["a", "j"]
    assert worker.claims.serve(KS, "me-3", MINE) == []
    assert worker.claims.to_release(KS) == [] and {"j", "waits"}.isdisjoint(worker.asked())
    assert not any(question.job for question in worker.claims.questions(KS, NOW, 9))


def test_a_message_that_came_again_is_not_passed_on_while_its_first_delivery_runs(worker: Worker) -> None:
    """Passed on, it would run again elsewhere: no other worker knows that its task has ended here."""
    worker.grant("a")
    first = worker.start()["a1"]
    worker.broker.put_back(worker.broker.slot(KS, MINE))  # as a broker does whose connection is lost
    worker.reconnect()
    worker.turn()
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(worker.broker, OTHER) == []
    worker.delivery_state.end(first, ACK, NOW)
    worker.turn()
    worker.turn()
    worker.move_all("a", OTHER)
    worker.turn()
    assert standing(worker.broker, OTHER) == ["a2"], "the first has ended, and does not come back"
