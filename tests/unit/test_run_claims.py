"""Runs that are claimed in the ledger before they start, against the memory broker, without threads."""

from __future__ import annotations

import json
from itertools import count

import pytest

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.limited import Bucket
from celery_sticky.delivery.state import DeliveryState, End, Item, abandonment
from celery_sticky.envelope import Envelope
from celery_sticky.errors import BrokerUnavailable, RunAbandoned
from celery_sticky.ownership.events import Drained, Event
from celery_sticky.queues.base import Disposition, Fetched, Outcome, RunClaim
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues

SLOT = ("ks", 1)
NOW = 1000.0
ACK = End(Outcome.ACK)


class Worker:
    """A delivery state whose courier does everything at once. Bodies are `<key>:<id>`.

    Upper case keys have tasks that run at most once, those of others are only deduplicated.
    """

    def __init__(self, broker: MemoryBroker, incarnation: str = "w", *, ahead: int | None = 10) -> None:
        self.reports: list[Event] = []
        self.broker, self.incarnation = broker, incarnation
        self.concurrency = 10
        self.queues = MemoryQueues(broker)
        self.trips = count(1)
        self.state = DeliveryState(
            lambda _, event: self.reports.append(event),
            worker=incarnation,
            concurrency=lambda: self.concurrency,
            max_waiting=100,
            max_attempts=5,
            claim_ahead=ahead,
        )

    def open(self, epoch: int) -> None:
        self.state.slots.open(SLOT, epoch, self.incarnation)
        self.open_all()

    def open_all(self) -> None:
        while openings := self.state.slots.openings():
            for opening, answer in zip(openings, self.queues.open(openings), strict=True):
                self.state.slots.answered(opening.tenure, answer, NOW)

    def reconnect(self) -> None:
        trips = self.queues._trips
        self.queues = MemoryQueues(self.broker)
        self.queues._trips = trips
        self.state.connected(NOW)
        self.open_all()

    def turn(self, *, answer_is_lost: bool = False, request_is_lost: bool = False) -> list[Disposition]:
        """Make a round trip; return what it settled."""
        dispositions = self.state.dispositions(NOW + 60)
        self.state.rounds.note(slot for slot in self.queues.idle(0.0) if self.state.gate.is_open(slot))
        wants = self.state.wants(NOW, company=True)
        if not request_is_lost:
            fetched = self.queues.fetch(wants, dispositions, NOW)
            if not answer_is_lost:
                self._take_in(fetched)
        return dispositions

    def turns(self, many: int = 4) -> list[Disposition]:
        made: list[Disposition] = []
        for _ in range(many):
            self.open_all()
            made += self.turn()
        return made

    def start(self) -> dict[str, Entry]:
        started = {}
        for entry in self.state.take(100, lambda _: True):
            assert self.state.gate.start(entry, entry.turn, trusted=True)
            started[entry.content.envelope.task_id] = entry
        return started

    def run_all(self) -> list[str]:
        """Run whatever comes, to its end; return what ran, in order."""
        ran: list[str] = []
        for _ in range(12):
            self.turns(2)
            for name, entry in self.start().items():
                ran.append(name)
                self.state.end(entry, ACK, NOW)
        return ran

    def _take_in(self, fetched: Fetched) -> None:
        self.state.take_in(fetched, NOW)
        for delivery in fetched.deliveries:
            key, task_id = delivery.body.decode().split(":")[:2]
            item = Item(delivery, Envelope({"task": "task", "id": task_id}, {}, "", "", b""))
            entry = Entry(SLOT, delivery.tag, key, item, delivery.attempts, kind="task", size=1)
            entry.run = RunClaim(f"{task_id}/0", once=key.isupper())
            if entry.run.once:
                entry.attempts = None
            self.state.admit(entry, None, NOW)

    @property
    def dead(self) -> list[dict[str, object]]:
        return [json.loads(one.info) for one in self.queues.dead("ks")]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def publish(broker: MemoryBroker, *bodies: str) -> None:
    for body in bodies:
        broker.publish(SLOT, body.encode())


def outcomes(made: list[Disposition]) -> list[Outcome]:
    return [disposition.outcome for disposition in made]


@pytest.fixture
def worker(broker: MemoryBroker) -> Worker:
    worker = Worker(broker)
    worker.open(1)
    return worker


def test_a_run_starts_only_when_it_is_claimed(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turn()
    assert worker.start() == {}
    assert outcomes(worker.turn()) == [Outcome.CLAIM]
    assert broker.ledgers["ks"].claimed.keys() == {"1/0"}
    (entry,) = worker.start().values()
    worker.state.end(entry, ACK, NOW)
    worker.turns()
    assert (broker.ledgers["ks"].claimed, broker.ledgers["ks"].finished) == ({}, {"1/0": NOW})


def test_at_most_so_many_runs_are_claimed_ahead_of_their_start(broker: MemoryBroker) -> None:
    worker = Worker(broker, ahead=2)
    worker.open(1)
    publish(broker, *(f"{key}:{key}" for key in "ABCDE"))
    worker.turns()
    assert len(broker.ledgers["ks"].claimed) == 2
    started = worker.start()
    assert sorted(started) == ["A", "B"]
    worker.turns()
    assert len(broker.ledgers["ks"].claimed) == 2, "neither has begun"
    for entry in started.values():
        entry.began = True
    worker.turns()
    assert len(broker.ledgers["ks"].claimed) == 4, "those that run are not ahead"


def test_without_a_limit_as_many_are_claimed_ahead_as_the_pool_runs(broker: MemoryBroker) -> None:
    worker = Worker(broker, ahead=None)
    worker.concurrency = 3
    worker.open(1)
    publish(broker, *(f"{key}:{key}" for key in "ABCDE"))
    worker.turns()
    assert len(broker.ledgers["ks"].claimed) == 3


def test_to_ask_whether_a_run_has_finished_is_not_limited(broker: MemoryBroker) -> None:
    worker = Worker(broker, ahead=0)
    worker.open(1)
    publish(broker, *(f"{key}:{key}" for key in "abcde"))
    worker.turns()
    assert len(worker.start()) == 5
    assert not broker.ledgers["ks"].claimed


def test_the_next_run_of_a_key_is_claimed_with_the_end_of_the_one_before(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "A:2")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.end(entry, ACK, NOW)
    assert outcomes(worker.turn()) == [Outcome.ACK, Outcome.CLAIM]
    assert list(worker.start()) == ["2"]


def test_a_claim_under_way_does_not_let_the_next_run_of_a_key_start_early(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "A:2")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.end(entry, ACK, NOW)
    worker.turn(request_is_lost=True)
    assert worker.start() == {}


def test_a_second_copy_of_a_finished_run_is_discarded(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "b:2")
    assert worker.run_all() == ["1", "2"]
    publish(broker, "A:1:copy", "b:2:copy", "A:3")
    assert worker.run_all() == ["3"]
    assert worker.state.discarded == 2
    assert not worker.dead


def test_a_copy_of_a_run_that_is_here_is_discarded(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "B:1:copy")
    worker.turns()
    assert list(worker.start()) == ["1"]
    worker.turns()
    assert worker.state.discarded == 1
    assert not worker.dead
    assert broker.ledgers["ks"].claimed, "its end is still to come"


def test_the_run_of_a_dead_worker_is_abandoned(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "A:2", "C:3")
    worker.turns(2)
    assert sorted(worker.start()) == ["1", "3"]
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == ["2"], "that one was not claimed"
    assert [(dead["id"], dead["run"], dead["abandoned"]) for dead in successor.dead] == [
        ("1", "1/0", True),
        ("3", "3/0", True),
    ]
    assert successor.state.abandoned == 2
    assert all(isinstance(error, RunAbandoned) for _, error in successor.state.refused)
    assert len(successor.state.refused) == 2


def test_a_deduplicated_run_of_a_dead_worker_runs_again(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "a:1")
    worker.turns(2)
    assert list(worker.start()) == ["1"]
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == ["1"]


def test_a_requeued_run_is_claimed_again_and_runs(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    worker.start()
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == []
    (dead,) = successor.queues.dead("ks")
    assert successor.queues.requeue("ks", dead.id)
    assert successor.run_all() == ["1"]


def test_a_run_whose_process_died_is_abandoned_at_once(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "A:2")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.end(entry, abandonment("its process died"), NOW)
    assert worker.run_all() == ["2"]
    assert [dead["abandoned"] for dead in worker.dead] == [True]
    assert worker.state.abandoned == 1


def test_a_warm_stop_gives_claims_of_runs_back_that_have_not_started(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "B:2")
    worker.turns()
    assert len(broker.ledgers["ks"].claimed) == 2
    worker.state.stop(SLOT, NOW)
    worker.turns()
    assert not broker.ledgers["ks"].claimed
    assert Drained(1) in worker.reports
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == ["1", "2"]


def test_a_slot_that_comes_back_while_claims_are_given_back_runs_everything(
    broker: MemoryBroker, worker: Worker
) -> None:
    publish(broker, "A:1", "B:2")
    worker.turns()
    worker.state.stop(SLOT, NOW)
    worker.open(3)
    assert worker.run_all() == ["1", "2"]


def test_claims_are_given_back_over_a_new_connection(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns()
    worker.state.stop(SLOT, NOW)
    worker.turn(request_is_lost=True)
    worker.reconnect()
    worker.turns()
    assert not broker.ledgers["ks"].claimed
    assert Drained(1) in worker.reports


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_run_whose_claim_got_no_answer_runs(broker: MemoryBroker, worker: Worker, lost: str) -> None:
    publish(broker, "A:1")
    worker.turn()
    worker.turn(answer_is_lost=lost == "answer", request_is_lost=lost == "request")
    for _ in range(2):
        worker.reconnect()
        worker.turn(answer_is_lost=True)
    worker.reconnect()
    assert worker.run_all() == ["1"]
    assert not worker.dead
    assert not broker.ledgers["ks"].claimed


def test_a_claimed_run_that_did_not_start_runs_after_a_reconnection(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    assert broker.ledgers["ks"].claimed
    worker.reconnect()
    assert worker.run_all() == ["1"]


def test_a_run_that_runs_here_goes_on_over_a_reconnection(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1", "A:2")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.reconnect()
    worker.state.end(entry, ACK, NOW)
    assert worker.run_all() == ["2"]
    assert broker.ledgers["ks"].finished.keys() == {"1/0", "2/0"}


def test_a_run_that_did_not_begin_has_another_turn(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.again(entry, NOW, counted=False)
    assert list(worker.start()) == ["1"]


def test_an_orphan_that_did_not_begin_is_claimed_again_before_it_starts(broker: MemoryBroker, worker: Worker) -> None:
    """Its slot was lost meanwhile: the claim decides whether the message is still ours."""
    publish(broker, "A:1")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.slots.close(SLOT)
    successor = Worker(broker, "x")
    successor.open(2)
    successor.turns()
    assert [dead["id"] for dead in successor.dead] == ["1"]
    worker.open(3)
    worker.state.again(entry, NOW, counted=False)
    assert worker.run_all() == []


def test_a_slot_that_is_lost_and_comes_back_runs_what_was_claimed_and_did_not_begin(
    broker: MemoryBroker, worker: Worker
) -> None:
    publish(broker, "A:1")
    worker.turns()
    worker.state.slots.close(SLOT)
    worker.open(2)
    assert worker.run_all() == ["1"]
    assert not worker.dead


def test_a_slot_that_comes_back_before_its_claims_could_be_given_back_runs_what_was_claimed(
    broker: MemoryBroker, worker: Worker
) -> None:
    publish(broker, "A:1")
    worker.turns()
    worker.state.stop(SLOT, NOW)
    Worker(broker, "x").open(2)
    worker.turns()
    assert broker.ledgers["ks"].claimed, "the broker has refused to take the claim back"
    worker.open(3)
    assert worker.run_all() == ["1"]


def test_a_claim_is_known_over_two_new_connections(broker: MemoryBroker) -> None:
    """The run is not claimed again in between: the other key uses up what may be claimed ahead."""
    worker = Worker(broker, ahead=1)
    worker.open(1)
    publish(broker, "A:1")
    worker.turns()
    worker.reconnect()
    publish(broker, "B:2")
    worker.state.gate.run_claims.take = lambda most: iter(())  # type: ignore[method-assign]
    worker.turns()
    del worker.state.gate.run_claims.take
    worker.reconnect()
    assert worker.run_all() == ["1", "2"]
    assert not worker.dead


def test_a_claim_from_before_a_reconnection_is_given_back(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns()
    worker.reconnect()
    worker.turns()
    worker.state.stop(SLOT, NOW)
    worker.turns()
    assert not broker.ledgers["ks"].claimed
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == ["1"]


def test_a_claim_from_before_a_reconnection_moves_with_its_message(broker: MemoryBroker, worker: Worker) -> None:
    broker.publish(SLOT, b"A:1")
    worker.turns()
    worker.reconnect()
    worker.turns()
    (entry,) = worker.state.gate._slots[SLOT].unstarted
    entry.content = Item(
        entry.content.delivery, Envelope({"task": "task", "id": "1", "sticky": {"key": "A"}}, {}, "", "", b"")
    )
    assert worker.state.gate.withdraw(entry)
    worker.state._put(entry, End(Outcome.MOVE, to=2), NOW)
    worker.turns()
    assert not broker.ledgers["ks"].claimed


def test_a_copy_of_a_message_that_came_again_and_waits_here_is_discarded(broker: MemoryBroker, worker: Worker) -> None:
    """The claim names the message's delivery before the reconnection."""
    publish(broker, "A:1")
    worker.turns()
    worker.reconnect()
    worker.turns()
    publish(broker, "B:1:copy")
    worker.turns()
    assert worker.run_all() == ["1"]
    assert (worker.state.discarded, worker.state.abandoned) == (1, 0)


def test_the_end_of_an_orphan_is_kept_for_its_message(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.slots.close(SLOT)
    Worker(broker, "x").open(2)
    worker.state.end(entry, ACK, NOW)
    worker.turns()
    worker.open(3)
    assert worker.run_all() == []
    assert not worker.dead
    assert broker.ledgers["ks"].finished.keys() == {"1/0"}


def test_a_former_owner_whose_claim_is_refused_starts_nothing(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turn()
    successor = Worker(broker, "x")
    successor.open(2)
    assert worker.run_all() == []
    assert successor.run_all() == ["1"]


def test_a_message_that_waits_for_its_time_has_not_finished(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    fetched = worker.queues.fetch(worker.state.wants(NOW, company=True), [], NOW)
    (delivery,) = fetched.deliveries
    item = Item(delivery, Envelope({"task": "task", "id": "1"}, {}, "", "", b""))
    worker.state.admit(Entry(SLOT, delivery.tag, "A", item, run=RunClaim("1/0", once=True)), NOW + 5, NOW)
    worker.turns()
    assert not broker.ledgers["ks"].finished


def test_a_retry_finishes_the_run_and_the_next_try_has_another(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.end(entry, End(Outcome.DEFER, due=NOW, body=b"A:1b"), NOW)
    assert worker.run_all() == ["1b"]
    assert broker.ledgers["ks"].finished.keys() == {"1/0", "1b/0"}


def test_a_message_that_moves_to_another_queue_takes_no_claim_with_it(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turn()
    (entry,) = worker.state.gate._slots[SLOT].unstarted
    envelope = Envelope({"task": "task", "id": "1", "sticky": {"key": "A"}}, {}, "", "", b"")
    entry.content = Item(entry.content.delivery, envelope)
    worker.turn()
    assert broker.ledgers["ks"].claimed
    withdrawn = worker.state.gate.withdraw(entry)
    assert withdrawn
    worker.state._put(entry, End(Outcome.MOVE, to=2), NOW)
    worker.turns()
    assert not broker.ledgers["ks"].claimed


class Empty:
    """A bucket without tokens, until it is filled."""

    tokens = 0

    def can_consume(self, tokens: int = 1) -> bool:
        self.tokens -= tokens
        return self.tokens >= 0

    def expected_time(self, tokens: int = 1) -> float:
        return 1.0


def test_a_run_whose_task_is_limited_meanwhile_waits_with_its_claim(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.turn()
    answer = worker.queues.fetch([], worker.state.dispositions(NOW + 60), NOW)  # it is on its way
    bucket: Bucket = Empty()
    worker.state.gate.limit({"task": bucket})
    worker._take_in(answer)
    assert broker.ledgers["ks"].claimed
    assert worker.start() == {}, "it is claimed and waits for a token"
    worker.state.gate.limit({})
    worker.state.gate.resume()
    assert list(worker.start()) == ["1"]


def test_a_resting_run_does_not_keep_others_from_being_claimed(broker: MemoryBroker) -> None:
    worker = Worker(broker, ahead=1)
    worker.open(1)
    publish(broker, "A:1", "B:2")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.rest(entry, entry.turn, NOW, after_run=False, cause="no place")
    worker.turns()
    assert list(worker.start()) == ["2"]


class Broken(MemoryQueues):
    """Cannot use its ledger."""

    def fetch(self, wants, dispositions, now):  # type: ignore[no-untyped-def]
        claims = [one for one in dispositions if one.outcome is Outcome.CLAIM]
        fetched = super().fetch(wants, [one for one in dispositions if one not in claims], now)
        fetched.failed += [(one, "key ledger is a string, not a hash") for one in claims]
        return fetched


def test_a_claim_that_fails_is_tried_again_later(broker: MemoryBroker, worker: Worker) -> None:
    publish(broker, "A:1")
    worker.queues = Broken(broker)
    worker.turns()
    assert worker.start() == {}
    worker.queues = MemoryQueues(broker)
    worker.queues._trips = 100
    due = worker.state.backoff.next_due
    assert due is not None
    assert worker.state.rouse(due)
    assert worker.run_all() == ["1"]


def test_a_ledger_is_asked_over_a_connection_that_breaks(broker: MemoryBroker, worker: Worker) -> None:
    class Gone(MemoryQueues):
        def fetch(self, wants, dispositions, now):  # type: ignore[no-untyped-def]
            super().fetch(wants, dispositions, now)
            raise BrokerUnavailable("gone")

    publish(broker, "A:1", "B:2")
    worker.turn()
    worker.queues = Gone(broker)
    with pytest.raises(BrokerUnavailable):
        worker.turn()
    worker.reconnect()
    assert worker.run_all() == ["1", "2"]


@pytest.mark.parametrize("way", ["again", "rest"])
def test_a_run_that_never_began_gives_its_claim_back_when_its_slot_moves(
    broker: MemoryBroker, worker: Worker, way: str
) -> None:
    publish(broker, "A:1")
    worker.turns(2)
    (entry,) = worker.start().values()
    worker.state.stop(SLOT, NOW)
    worker.turns()
    assert Drained(1) not in worker.reports, "its start is reserved"
    if way == "again":
        worker.state.again(entry, NOW, counted=False)
    else:
        worker.state.rest(entry, entry.turn, NOW, after_run=False, cause="no place")
    worker.turns()
    assert Drained(1) in worker.reports
    assert not broker.ledgers["ks"].claimed
    successor = Worker(broker, "x")
    successor.open(2)
    assert successor.run_all() == ["1"]
