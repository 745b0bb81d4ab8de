"""The courier's loop, one request at a time against the memory broker, on a clock that the test sets."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any

import pytest

from celery_sticky.delivery import rounds
from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import IDLE, LOOK, RETRY_FIRST, RETRY_LAST, UNTRUSTED, CourierConfig
from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.requests import (
    Close,
    Connect,
    CountDead,
    Fetch,
    Flow,
    Idle,
    Open,
    Pause,
    Release,
    Request,
    TrimDead,
    Unexpected,
)
from celery_sticky.delivery.slots import OPENINGS
from celery_sticky.delivery.state import End
from celery_sticky.envelope import Envelope
from celery_sticky.errors import BrokerUnavailable, Fenced, InvalidKey, SlotBroken, SlotHeld, StickyError
from celery_sticky.keys import SlotId
from celery_sticky.keyspace import DeadBounds
from celery_sticky.ownership.events import BrokerDown, BrokerUp, Drained, Event, Opened, OpenRefused
from celery_sticky.queues.base import Fetched, Opening, Outcome, Tenure
from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.queues.memory_held import HELD, HeldBroker, HeldQueues

KS = "ks"
ACK = End(Outcome.ACK)
AWAY = BrokerUnavailable("away")


class Line:
    """A line whose requests the test performs."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.connect()
        self.flow: Flow[None]
        self.request: Request
        self.woken = 0
        self.joined = False

    def connect(self) -> None:
        broker = self.broker
        self.queues = HeldQueues(broker) if isinstance(broker, HeldBroker) else MemoryQueues(broker)

    def start(self, flow: Flow[None]) -> None:
        self.flow, self.request = flow, next(flow)

    def wake(self) -> None:
        self.woken += 1

    def join(self, timeout: float) -> None:
        self.joined = True

    def answer(self) -> Request:
        """Perform the request, as a broker that answers does; return the next one."""
        request = self.request
        match request:
            case Connect():
                self.connect()
            case Idle():
                return self.send(self.queues.idle(0.0))
            case Close():
                self.queues.close()
            case Pause() | Unexpected():
                pass
            case _:
                return self.send(request(self.queues))
        return self.send(None)

    def send(self, answer: Any) -> Request:
        self.request = self.flow.send(answer)
        return self.request

    def fail(self, error: Exception) -> Request:
        self.request = self.flow.throw(error)
        return self.request

    def until(self, *kinds: type) -> Request:
        """Answer up to the next request of these kinds."""
        while not isinstance(self.answer(), kinds):
            pass
        return self.request

    def rest(self) -> float:
        """Answer until it has nothing to do; return for how long it then idles."""
        while True:
            request = self.until(Idle)
            assert isinstance(request, Idle)
            if request.seconds:
                return request.seconds


class Worker:
    """A courier, and a pool that the test plays. Bodies are `<key>:<n>`."""

    def __init__(self, broker: MemoryBroker | None = None, **config: Any) -> None:
        self.now = 1000.0
        self.broker = broker or MemoryBroker()
        self.line = Line(self.broker)
        self.events: list[Event] = []
        self.trusted = True
        self.readied = 0
        self.courier = Courier(
            self.line,
            CourierConfig(
                keyspaces=(KS,),
                worker="w",
                max_waiting=100,
                max_waiting_bytes=1 << 20,
                max_attempts=5,
                broker_grace=8.0,
                **config,
            ),
            lambda _, event: self.events.append(event),
            lambda _: self.trusted,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )
        self.courier.start(self)

    def open(self, *slots: int) -> float:
        """Open slots, and let the courier come to rest."""
        for slot in slots:
            self.courier.open((KS, slot), 1, "w1")
        return self.line.rest()

    def publish(self, slot: int, *bodies: str) -> None:
        for body in bodies:
            headers = {"task": "t", "id": body}
            text = {"headers": headers, "properties": {"body_encoding": "base64"}, "body": "W10="}
            self.broker.publish((KS, slot), json.dumps(text).encode())

    def started(self) -> list[Entry]:
        entries = self.courier.take(10)
        assert all(self.courier.start_entry(entry, entry.turn) for entry in entries)
        return entries

    # -- the courier's task sink ---------------------------------------------------------------

    def concurrency(self) -> int:
        return 4

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        if envelope.task_id.startswith("bad"):
            raise InvalidKey("no key")
        return envelope.task_id.partition(":")[0]

    def claim_of(self, envelope: Envelope) -> None:
        return None

    def due_of(self, envelope: Envelope) -> None:
        return None

    def ready(self) -> None:
        self.readied += 1

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        raise AssertionError(messages)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_it_opens_what_it_should_fetches_and_looks_into_empty_slots_after_each_round_trip(worker: Worker) -> None:
    worker.publish(1, "k:1", "k:2")
    worker.courier.open((KS, 1), 1, "w1")
    assert worker.line.request == Connect()
    assert isinstance(worker.line.answer(), Open)
    assert isinstance(worker.line.answer(), Fetch)
    assert worker.events == [Opened(1, 1)]
    worker.line.answer()
    assert worker.readied == 1
    assert worker.line.until(Idle) == Idle(0.0)
    worker.publish(1, "k:3")
    request = worker.line.until(Fetch)
    assert isinstance(request, Fetch) and [want.tenure.slot for want in request.wants] == [1]


def test_a_message_without_a_key_is_buried_and_the_others_go_on(worker: Worker) -> None:
    worker.publish(1, "bad", "k:1")
    worker.open(1)
    assert [entry.key for entry in worker.started()] == ["k"]
    worker.now += 1.0
    worker.line.rest()
    assert worker.line.queues.dead_counts([KS]) == {KS: 1}


def test_with_nothing_to_do_it_idles_until_the_next_time_at_which_there_may_be(worker: Worker) -> None:
    assert worker.open(1) == IDLE
    worker.publish(1, "k:1")
    worker.line.until(Fetch)
    worker.line.rest()
    (entry,) = worker.started()
    worker.courier.rest(entry, entry.turn, after_run=False, cause="no memory")
    assert worker.line.rest() == pytest.approx(0.25)
    worker.now += 0.25
    readied = worker.readied
    worker.line.rest()
    assert worker.readied > readied
    assert [entry.key for entry in worker.started()] == ["k"]


def take_the_fence(worker: Worker, slot: int) -> None:
    """Open a slot as a worker does that stood still, under an epoch that the store has forgotten."""
    MemoryQueues(worker.broker).open([Opening(Tenure(KS, slot, 9, "stood still", 1))])


def test_an_idle_owner_notices_that_the_fence_of_its_slot_was_moved(worker: Worker) -> None:
    worker.open(1, 2)
    take_the_fence(worker, 2)
    assert worker.line.rest() > 0
    assert OpenRefused(2, 9) not in worker.events
    worker.now += LOOK
    worker.line.rest()
    assert worker.events[-1] == OpenRefused(2, 9)


def test_a_refusal_is_followed_by_a_look_at_once(worker: Worker) -> None:
    """Its message is in flight under the other fence: no message may ever come that causes a fetch."""
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    take_the_fence(worker, 1)
    worker.courier.end(entry, End(Outcome.ACK))
    worker.now += 1.0
    worker.line.rest()
    assert worker.events[-1] == OpenRefused(1, 9)


def test_many_slots_are_looked_into_in_turns(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    monkeypatch.setattr(rounds, "LOOKED_INTO", 2)
    worker.open(1, 2, 3, 4, 5)
    for slot in range(1, 6):
        take_the_fence(worker, slot)
    for _ in range(4):
        worker.now += LOOK
        worker.line.rest()
    assert {event.slot for event in worker.events if isinstance(event, OpenRefused)} == {1, 2, 3, 4, 5}


def test_what_may_not_start_for_lack_of_trust_is_offered_again_soon(worker: Worker) -> None:
    worker.trusted = False
    worker.publish(1, "k:1")
    assert worker.open(1) == UNTRUSTED
    readied = worker.readied
    worker.line.answer()
    assert worker.readied > readied


def test_what_waits_for_a_rate_limit_goes_on_when_there_is_a_token(worker: Worker) -> None:
    class Bucket:
        tokens = 0

        def can_consume(self, tokens: int = 1) -> bool:
            return self.tokens > 0

        def expected_time(self, tokens: int = 1) -> float:
            return 0.4

    bucket = Bucket()
    worker.courier.limit({"t": bucket})
    worker.publish(1, "k:1")
    assert worker.open(1) == pytest.approx(0.4)
    assert worker.started() == []
    bucket.tokens = 1
    worker.line.answer()
    assert [entry.key for entry in worker.started()] == ["k"]


# -- Woken -------------------------------------------------------------------------------------


def test_a_change_wakes_it_once_and_only_out_of_its_idling(worker: Worker) -> None:
    worker.publish(1, "k:1")
    worker.courier.open((KS, 1), 1, "w1")
    worker.line.until(Fetch)
    worker.courier.open((KS, 2), 1, "w1")
    assert worker.line.woken == 0
    worker.line.rest()
    worker.courier.open((KS, 3), 1, "w1")
    worker.courier.open((KS, 4), 1, "w1")
    assert worker.line.woken == 1
    assert isinstance(worker.line.answer(), Open)


def test_a_change_right_before_it_idles_is_not_slept_over(worker: Worker) -> None:
    worker.line.until(CountDead)
    worker.courier.open((KS, 1), 1, "w1")
    assert worker.line.woken == 1, "the driver's next wait ends at once"
    assert worker.line.until(Idle) == Idle(0.0)
    assert isinstance(worker.line.answer(), Open)


def test_decisions_about_keys_offer_what_they_make_ready(worker: Worker) -> None:
    worker.trusted = False
    worker.publish(1, "k:1")
    worker.open(1)
    readied = worker.readied
    worker.courier.decide(lambda state, now: None)
    worker.line.send(set())
    assert worker.readied == readied + 2, "after the wait, and in the turn that follows"


def test_it_ends_with_the_turn_in_which_it_is_told_to(worker: Worker) -> None:
    worker.open(1)
    worker.courier.shutdown(0.0)
    assert worker.line.woken and worker.line.joined
    assert worker.line.answer() == Close()
    with pytest.raises(StopIteration):
        worker.line.send(None)


# -- A broker that is away ---------------------------------------------------------------------


def test_a_lost_broker_is_reported_once_and_tried_again_after_growing_pauses(worker: Worker) -> None:
    pauses = []
    for _ in range(8):
        assert worker.line.fail(AWAY) == Close()
        request = worker.line.answer()
        assert isinstance(request, Pause)
        pauses.append(request.seconds)
        assert worker.line.answer() == Connect()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    assert (pauses[0], pauses[-1]) == (RETRY_FIRST, RETRY_LAST)
    assert worker.events == [BrokerDown()]


def test_pauses_grow_until_a_whole_turn_has_succeeded(worker: Worker) -> None:
    worker.courier.open((KS, 1), 1, "w1")
    worker.line.fail(AWAY)
    worker.line.until(Fetch)
    worker.line.fail(AWAY)
    assert worker.line.answer() == Pause(2 * RETRY_FIRST)
    worker.line.rest()
    worker.line.fail(AWAY)
    assert worker.line.answer() == Pause(RETRY_FIRST)


def test_a_broker_that_is_back_is_reported_when_every_slot_is_open_again(worker: Worker) -> None:
    worker.open(1, 2)
    worker.events.clear()
    worker.line.fail(AWAY)
    request = worker.line.until(Open)
    assert isinstance(request, Open) and [one.tenure.slot for one in request.openings] == [1, 2]
    assert worker.events == [BrokerDown()]
    worker.line.answer()
    assert worker.events[1:] == [Opened(1, 1), Opened(2, 1), BrokerUp()]


def test_dispositions_without_an_answer_go_again_with_the_next_connection(worker: Worker) -> None:
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.end(entry, ACK)
    worker.now += 0.01
    lost = worker.line.until(Fetch)
    worker.line.fail(AWAY)
    again = worker.line.until(Fetch)
    assert isinstance(lost, Fetch) and isinstance(again, Fetch)
    assert [one.tag for one in again.dispositions] == [one.tag for one in lost.dispositions] == [entry.tag]


def test_slots_go_without_confirmation_when_the_broker_was_away_for_its_grace(worker: Worker) -> None:
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.stop((KS, 1))
    worker.courier.end(entry, ACK)
    worker.line.fail(AWAY)
    worker.line.until(Connect)
    worker.now += 7.9
    worker.line.fail(AWAY)
    worker.line.until(Connect)
    assert Drained(1) not in worker.events
    worker.now += 0.2
    worker.line.fail(AWAY)
    worker.line.answer()
    assert Drained(1) in worker.events


def test_after_an_error_that_it_does_not_know_it_connects_again(worker: Worker) -> None:
    worker.open(1)
    error = RuntimeError("a fault of the driver")
    assert worker.line.fail(error) == Unexpected(error)
    assert worker.line.answer() == Close()
    assert worker.line.answer() == Pause(RETRY_FIRST)
    assert worker.line.answer() == Connect()
    assert isinstance(worker.line.answer(), Open)


# -- Slots that do not open --------------------------------------------------------------------


def test_a_slot_that_is_refused_or_broken_does_not_hold_up_the_others(worker: Worker) -> None:
    for slot in (1, 2, 3, 4):
        worker.courier.open((KS, slot), 1, "w1")
    worker.line.answer()
    worker.line.send([Fenced(7, "other"), SlotBroken("a record is unusable"), SlotHeld(), ()])
    assert worker.events == [OpenRefused(1, 7), Opened(4, 1)]


def test_a_slot_that_another_connection_holds_is_opened_again_until_it_is_given_back(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.courier.open((KS, 1), 1, "w1")
    worker.line.answer()
    worker.line.send([SlotHeld()])
    pauses = [worker.line.rest()]
    for _ in range(8):
        worker.now += pauses[-1]
        worker.line.until(Open)
        worker.line.send([SlotHeld()])
        pauses.append(worker.line.rest())
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "slot 1 of keyspace ks: another worker's connection to the broker still holds it." in caplog.text
    worker.now += 2.0
    worker.line.rest()
    assert worker.events == [Opened(1, 1)]


def test_many_slots_are_opened_by_requests_of_bounded_size(worker: Worker) -> None:
    for slot in range(OPENINGS + 6):
        worker.courier.open((KS, slot), 1, "w1")
    requests = [worker.line.answer(), worker.line.answer()]
    assert [len(one.openings) for one in requests if isinstance(one, Open)] == [OPENINGS, 6]
    worker.line.rest()
    assert worker.events == [Opened(slot, 1) for slot in range(OPENINGS + 6)]


def test_a_broken_slot_is_opened_again_later_under_the_next_count(worker: Worker) -> None:
    worker.courier.open((KS, 1), 1, "w1")
    refused = worker.line.answer()
    worker.line.send([SlotBroken("a record is unusable")])
    assert worker.line.rest() == pytest.approx(0.5)
    worker.now += 0.5
    again = worker.line.answer()
    assert isinstance(refused, Open) and isinstance(again, Open)
    assert again.openings[0].tenure.open_count == refused.openings[0].tenure.open_count + 1
    worker.line.answer()
    assert worker.events == [Opened(1, 1)]


# -- The dead queue ----------------------------------------------------------------------------


def test_the_dead_queue_is_kept_within_its_limit_a_batch_in_each_turn() -> None:
    worker = Worker(dead_bounds={KS: DeadBounds(1)})
    request = worker.line.until(TrimDead)
    assert request == TrimDead(KS, 1, 0.0)
    worker.line.send(64)
    assert isinstance(worker.line.request, CountDead)
    assert worker.line.until(Idle) == Idle(0.0), "there may be more"
    assert isinstance(worker.line.until(TrimDead), TrimDead)
    assert worker.line.rest() == pytest.approx(IDLE)


# -- Slots that are held by the connection ------------------------------------------------------


def held() -> Worker:
    """Return a worker whose broker holds slots by their connection and confirms late."""
    return Worker(HeldBroker(), guarantees=HELD)


def test_a_slot_is_given_back_before_it_is_reported_drained() -> None:
    worker = held()
    worker.open(1, 2)
    worker.events.clear()
    worker.courier.stop((KS, 1))
    assert worker.events == [] and worker.line.woken == 1
    request = worker.line.answer()
    assert isinstance(request, Release) and [tenure.slot for tenure in request.tenures] == [1]
    assert worker.events == []
    worker.line.answer()
    assert worker.events == [Drained(1)]
    other = Worker(worker.broker, guarantees=HELD)
    other.open(1)
    assert other.events == [Opened(1, 1)]


def test_a_slot_is_given_back_when_its_last_task_has_been_confirmed() -> None:
    worker = held()
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.stop((KS, 1))
    worker.line.rest()
    assert Drained(1) not in worker.events
    worker.courier.end(entry, ACK)
    worker.line.until(Release)
    assert Drained(1) not in worker.events
    worker.line.rest()
    assert worker.events[-1] == Drained(1)


def test_a_slot_that_another_worker_owns_is_given_back_and_nothing_is_reported() -> None:
    worker = held()
    worker.open(1)
    worker.events.clear()
    worker.courier.close((KS, 1))
    assert isinstance(worker.line.answer(), Release)
    worker.line.rest()
    assert worker.events == []


def test_a_slot_that_opened_after_it_was_closed_is_given_back() -> None:
    worker = held()
    worker.courier.open((KS, 1), 1, "w1")
    worker.line.until(Open)
    worker.courier.close((KS, 1))
    assert isinstance(worker.line.until(Release), Release)
    worker.line.rest()
    other = Worker(worker.broker, guarantees=HELD)
    other.open(1)
    assert other.events == [Opened(1, 1)]


def test_a_slot_that_was_stopped_while_it_was_opened_again_is_reported_drained() -> None:
    worker = held()
    worker.open(1)
    worker.line.fail(AWAY)
    worker.line.until(Open)
    worker.courier.stop((KS, 1))
    assert Drained(1) not in worker.events, "the opening may arrive: the slot is given back after it"
    worker.line.rest()
    assert worker.events.count(Drained(1)) == 1
    other = Worker(worker.broker, guarantees=HELD)
    other.open(1)
    assert other.events == [Opened(1, 1)]


def test_a_slot_that_was_stopped_while_it_was_opened_first_is_given_back_before_it_is_reported_drained() -> None:
    worker = held()
    worker.courier.open((KS, 1), 1, "w1")
    worker.line.until(Open)
    worker.courier.stop((KS, 1))
    assert isinstance(worker.line.until(Release), Release)
    assert worker.events == []
    worker.line.rest()
    assert worker.events == [Drained(1)]


def test_a_slot_that_is_closed_before_it_was_given_back_is_not_reported_drained() -> None:
    worker = held()
    worker.open(1)
    worker.courier.stop((KS, 1))
    worker.courier.close((KS, 1))
    assert isinstance(worker.line.answer(), Release)
    worker.line.rest()
    assert Drained(1) not in worker.events


def test_a_lost_connection_has_given_everything_back() -> None:
    worker = held()
    worker.open(1, 2)
    worker.courier.stop((KS, 1))
    worker.line.answer()
    worker.line.fail(AWAY)
    worker.line.answer()
    assert worker.events[-2:] == [Drained(1), BrokerDown()]
    worker.courier.stop((KS, 2))
    assert worker.events[-1] == Drained(2), "without a connection nothing is held"


def test_no_request_gives_back_slots_that_are_fenced_by_epochs(worker: Worker) -> None:
    worker.open(1)
    worker.courier.stop((KS, 1))
    assert worker.events[-1] == Drained(1)
    assert not isinstance(worker.line.answer(), Release)


def test_a_disposition_that_is_answered_later_frees_its_key_then() -> None:
    worker = held()
    worker.publish(1, "k:1", "k:2")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.end(entry, ACK)
    worker.now += 0.01
    request = worker.line.until(Fetch)
    assert isinstance(request, Fetch) and request.dispositions
    worker.line.answer()
    assert worker.started() == [] and worker.courier.counts()["unconfirmed"] == 1
    request = worker.line.until(Fetch)
    assert isinstance(request, Fetch) and not request.dispositions
    worker.line.answer()
    assert worker.courier.counts()["unconfirmed"] == 0
    assert [entry.content.envelope.task_id for entry in worker.started()] == ["k:2"]


def test_it_idles_while_answers_are_outstanding() -> None:
    worker = held()
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.end(entry, ACK)
    worker.now += 0.01
    worker.line.until(Fetch)
    worker.line.send(Fetched())
    for _ in range(3):
        request = worker.line.until(Idle)
        if request != Idle(0.0):
            break
    assert isinstance(request, Idle) and request.seconds > 1, "the driver ends this wait when it has an answer"
    assert isinstance(worker.line.send(set()), Fetch)


def test_starts_that_the_broker_does_not_count_are_counted_here() -> None:
    worker = held()
    worker.publish(1, "k:1")
    worker.open(1)
    for attempt in range(4):
        (entry,) = worker.started()
        assert entry.attempts == (attempt or None)
        worker.courier.again(entry, counted=True, cause="its process died")
        worker.line.rest()
    (entry,) = worker.started()
    worker.courier.again(entry, counted=True, cause="its process died")
    worker.now += 1.0
    worker.line.rest()
    worker.line.rest()
    assert worker.started() == [] and worker.line.queues.dead_counts([KS]) == {KS: 1}


def test_a_handover_does_not_wait_for_starts_that_were_counted_here() -> None:
    worker = held()
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.courier.again(entry, counted=True, cause="its process died")
    worker.line.rest()
    worker.courier.stop((KS, 1))
    worker.line.rest()
    assert worker.events[-1] == Drained(1)


def test_a_start_counted_here_is_not_repeated_for_a_message_that_went_back() -> None:
    worker = held()
    worker.publish(1, "k:1")
    worker.open(1)
    (entry,) = worker.started()
    worker.line.fail(AWAY)
    worker.line.rest()
    worker.courier.again(entry, counted=True, cause="its process died")
    worker.line.rest()
    (again,) = worker.started()
    assert again is not entry, "it came again, and runs once more"
    worker.courier.end(again, ACK)
    worker.now += 0.01
    worker.line.rest()
    worker.line.rest()
    assert worker.started() == [] and worker.courier.counts()["keys"] == 0


def test_as_many_dispositions_wait_for_each_other_as_the_driver_says() -> None:
    sent = []
    for company in (2, 3):
        worker = Worker(guarantees=replace(FULL, company=company))
        worker.publish(1, "a:1", "b:1", "c:1", "d:1")
        worker.open(1)
        for entry in worker.started()[:3]:
            worker.courier.end(entry, ACK)
            if worker.courier.consult(lambda state: state.outbox.full):
                break
        sent.append(worker.courier.counts()["unconfirmed"])
    assert sent == [2, 3]
