"""What a courier knows and decides, against the memory broker, without threads."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.rounds import Rounds
from celery_sticky.delivery.state import DeliveryState, End, Item
from celery_sticky.envelope import Envelope
from celery_sticky.errors import SlotBroken, SlotHeld
from celery_sticky.ownership.events import Drained, Event, Opened, OpenRefused
from celery_sticky.queues.base import Fetched, Outcome
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues

SLOT = ("ks", 1)
NOW = 1000.0
ACK = End(Outcome.ACK)


class Worker:
    """A delivery state whose courier does everything at once. Bodies are `<key>:<n>`."""

    def __init__(
        self, broker: MemoryBroker, incarnation: str = "w-0", max_attempts: int = 2, max_waiting_bytes: int = 1 << 20
    ) -> None:
        self.reports: list[Event] = []
        self.concurrency = 2
        self.incarnation = incarnation
        self.broker = broker
        self.queues = MemoryQueues(broker)
        self.state = DeliveryState(
            lambda _, event: self.reports.append(event),
            worker="w",
            concurrency=lambda: self.concurrency,
            max_waiting=100,
            max_waiting_bytes=max_waiting_bytes,
            max_attempts=max_attempts,
        )

    def open(self, epoch: int) -> None:
        self.state.slots.open(SLOT, epoch, self.incarnation)
        self.open_all()

    def open_all(self) -> None:
        while openings := self.state.slots.openings():
            for opening, answer in zip(openings, self.queues.open(openings), strict=True):
                self.state.slots.answered(opening.tenure, answer, NOW)

    def reconnect(self) -> None:
        self.queues = MemoryQueues(self.broker)
        self.state.connected(NOW)
        self.open_all()

    def turn(self) -> None:
        dispositions = self.state.dispositions(NOW + 60)
        self._take_in(self.queues.fetch(self.state.wants(NOW, company=True), dispositions, NOW))

    def fetch(self, limit: int) -> None:
        """Fetch so many messages and no more."""
        wants = [replace(want, limit=limit) for want in self.state.wants(NOW, company=True)]
        self._take_in(self.queues.fetch(wants, [], NOW))

    def run_all(self) -> list[str]:
        """Run whatever comes, to its end; return what ran, in order."""
        ran: list[str] = []
        for _ in range(12):
            self.open_all()
            self.turn()
            for name, entry in self.start().items():
                ran.append(name)
                self.state.end(entry, ACK, NOW)
        return ran

    def _take_in(self, fetched: Fetched) -> None:
        self.state.take_in(fetched, NOW)
        for delivery in fetched.deliveries:
            body = delivery.body.decode()
            item = Item(delivery, Envelope({"task": "task", "id": body}, {}, "", "", b""))
            slot = (delivery.tenure.keyspace, delivery.tenure.slot)
            entry = Entry(slot, delivery.tag, body[0], item, attempts=delivery.attempts, size=len(delivery.body))
            self.state.admit(entry, None, NOW)

    def start(self) -> dict[str, Entry]:
        started = {}
        for entry in self.state.take(10, lambda _: True):
            assert self.state.gate.start(entry, entry.turn, trusted=True)
            started[entry.content.envelope.task_id] = entry
        return started


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    for body in ("a:1", "a:2", "b:1"):
        broker.publish(SLOT, body.encode())
    return broker


def reasons(worker: Worker) -> list[Any]:
    return [json.loads(one.info)["reason"] for one in worker.queues.dead("ks")]


def test_one_task_of_a_key_at_a_time_and_the_next_only_when_the_disposition_is_confirmed(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    assert sorted(started) == ["a:1", "b:1"]
    worker.state.end(started["a:1"], ACK, NOW)
    assert worker.start() == {}, "the disposition is not confirmed yet"
    worker.turn()
    assert sorted(worker.start()) == ["a:2"]
    assert worker.reports == [Opened(1, 1)]


def test_a_stopped_slot_is_drained_when_its_last_disposition_is_confirmed(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.stop(SLOT, NOW)
    for entry in started.values():
        assert worker.state.end(entry, ACK, NOW), "somebody waits for the slot"
    assert Drained(1) not in worker.reports
    worker.turn()
    assert worker.reports == [Opened(1, 1), Drained(1)]


def test_a_stopped_slot_is_not_opened_for_more_when_the_connection_is_a_new_one(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.stop(SLOT, NOW)
    worker.reconnect()
    assert not worker.state.gate.is_open(SLOT) and worker.reports == [Opened(1, 1)]
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.turn()
    assert worker.reports == [Opened(1, 1), Drained(1)], "its dispositions count under the new tenure"
    assert worker.start() == {}


def test_what_a_new_connection_finds_running_is_kept_and_the_rest_comes_again(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.reconnect()
    worker.turn()
    assert worker.start() == {}, "a:2 waits behind its key"
    worker.state.end(started["a:1"], ACK, NOW)
    worker.turn()
    assert sorted(worker.start()) == ["a:2"]


def test_a_disposition_refused_under_a_lost_tenure_is_remembered_for_the_message(broker: MemoryBroker) -> None:
    worker, other = Worker(broker), Worker(broker, "o-0")
    worker.open(1)
    worker.turn()
    started = worker.start()
    other.open(2)
    worker.open(1)
    assert worker.reports == [Opened(1, 1), OpenRefused(1, 2)]
    worker.state.end(started["a:1"], ACK, NOW)
    worker.turn()
    worker.open(3)
    worker.turn()
    worker.turn()
    assert "a:1" not in worker.start(), "it has run here"


def test_a_disposition_counts_until_the_next_owner_opens_the_slot(broker: MemoryBroker) -> None:
    """Guards: sent under the tenure it was fetched under, not the one since, it was refused, and its task ran again."""
    worker, other = Worker(broker), Worker(broker, "o-0")
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.reconnect()
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.state.slots.close(SLOT)  # evicted, or the store was lost
    worker.turn()
    other.open(2)
    other.turn()
    other.turn()
    assert sorted(other.start()) == ["a:2"]


def test_a_disposition_refused_because_another_had_the_slot_meanwhile_is_remembered_too(broker: MemoryBroker) -> None:
    """Guards: refused under a tenure that is ours, it was taken for settled, and its task ran a second time here."""
    worker, other = Worker(broker), Worker(broker, "o-0")
    worker.open(1)
    worker.turn()
    started = worker.start()
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.state.slots.close(SLOT)
    other.open(2)
    worker.open(3)
    for _ in range(4):
        worker.turn()
    assert sorted(worker.start()) == ["a:2"]


def test_what_comes_again_while_it_runs_here_ends_with_the_run(broker: MemoryBroker) -> None:
    """Guards: it waits behind its own earlier delivery, whose disposition is refused, and then ran a second time."""
    worker, other = Worker(broker), Worker(broker, "o-0")
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.slots.close(SLOT)
    other.open(2)
    worker.open(3)
    worker.turn()
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.turn()
    assert worker.start() == {}, "the dispositions of their second deliveries are not confirmed yet"
    for _ in range(3):
        worker.turn()
    assert sorted(worker.start()) == ["a:2"]
    assert not worker.state._memory


def with_a_disposition_to_recollect(broker: MemoryBroker) -> Worker:
    """Return a worker that has ended a:1 under a lost tenure, and has fetched it and a:2 once more."""
    worker, other = Worker(broker), Worker(broker, "o-0")
    worker.open(1)
    worker.turn()
    started = worker.start()
    other.open(2)
    worker.open(1)
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.turn()
    worker.open(3)
    worker.turn()
    return worker


def test_the_next_task_waits_for_a_disposition_that_was_recollected(broker: MemoryBroker) -> None:
    """Guards: were the connection lost before that disposition arrives, a:1 would run again after a:2."""
    worker = with_a_disposition_to_recollect(broker)
    assert worker.start() == {}, "a:1 is not confirmed yet"
    worker.reconnect()
    assert sorted(message.body for message in broker.slot("ks", 1).flight.values()) == [b"a:1", b"b:1"], "they stay"
    worker.turn()
    worker.turn()  # a:2 is marked
    assert sorted(worker.start()) == ["a:2"]


def test_a_slot_is_not_given_away_before_a_recollected_disposition_is_confirmed(broker: MemoryBroker) -> None:
    worker = with_a_disposition_to_recollect(broker)
    worker.state.stop(SLOT, NOW)
    assert Drained(1) not in worker.reports
    worker.turn()
    assert worker.reports[-1] == Drained(1)
    other = Worker(broker, "o-1")
    other.open(4)
    other.turn()
    other.turn()
    assert sorted(other.start()) == ["a:2"], "what has run does not run again"


def test_a_task_that_never_comes_to_an_end_is_marked_and_buried_at_the_limit(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()["a:1"]
    worker.state.again(started, NOW, counted=True)
    assert worker.start() == {}, "its start must be marked first"
    worker.turn()
    worker.state.again(worker.start()["a:1"], NOW, counted=True)
    worker.turn()
    worker.turn()
    assert reasons(worker) == ["started 2 times and never finished: its process died each time"]
    assert sorted(worker.start()) == ["a:2"]


def test_where_a_message_may_start_twice_only_its_second_start_is_a_lone_one(broker: MemoryBroker) -> None:
    """Guards: a neighbour that was in flight at each death of a poison's two workers is not buried with it."""
    for epoch, starts in ((1, ["a:1", "b:1"]), (2, ["a:1"])):
        worker = Worker(broker, f"w-{epoch}")
        worker.open(epoch)
        worker.turn()
        worker.turn()  # marks what was in flight at the worker before
        assert sorted(worker.start()) == starts, "and the worker dies"
    survivor = Worker(broker, "w-3")
    survivor.open(3)
    ran = []
    for _ in range(9):
        survivor.turn()
        for name, entry in survivor.start().items():
            ran.append(name)
            survivor.state.end(entry, ACK, NOW)
    assert reasons(survivor) == ["started 2 times and never finished: its process died each time"]
    assert sorted(ran) == ["a:2", "b:1"]


def test_what_waits_for_a_broker_that_is_away_too_long_is_given_up_unless_it_runs(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.stop(SLOT, NOW)
    worker.state.end(started["a:1"], ACK, NOW)
    worker.state.slots.give_up_ended()
    assert Drained(1) not in worker.reports, "b:1 runs"
    worker.state.end(started["b:1"], ACK, NOW)
    worker.state.slots.give_up_ended()
    assert worker.reports == [Opened(1, 1), Drained(1)]


def test_what_is_given_up_is_not_opened_when_the_broker_is_back(broker: MemoryBroker) -> None:
    """Guards: a drained slot is another's; what a late opening fetched would run in this worker's next membership."""
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.stop(SLOT, NOW)
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    worker.state.connected(NOW)  # and the connection breaks again before the slot is open
    worker.state.slots.give_up_ended()
    worker.reconnect()
    worker.turn()
    assert worker.reports == [Opened(1, 1), Drained(1)]
    assert worker.start() == {}


def suspects(broker: MemoryBroker) -> Worker:
    """Return a worker that has fetched what a dead one may have started."""
    dead = Worker(broker, "dead-0")
    dead.open(1)
    dead.turn()
    worker = Worker(broker, max_attempts=3)
    worker.open(2)
    worker.turn()
    worker.turn()
    return worker


def counted_starts(broker: MemoryBroker) -> list[int | None]:
    slot = broker.slot("ks", 1)
    messages = [*slot.flight.values(), *slot.waiting]
    return [message.counted_starts for message in sorted(messages, key=lambda message: message.body)]


def test_a_message_given_away_before_it_started_loses_its_mark(broker: MemoryBroker) -> None:
    worker = suspects(broker)
    assert counted_starts(broker) == [1, 0, 1]
    worker.state.stop(SLOT, NOW)
    assert worker.reports == [Opened(1, 2)], "the marks are to be taken back first"
    assert worker.start() == {}
    worker.turn()
    assert worker.reports == [Opened(1, 2), Drained(1)]
    assert counted_starts(broker) == [0, 0, 0]


def test_a_message_that_went_back_with_an_opening_keeps_its_mark_and_needs_no_other(broker: MemoryBroker) -> None:
    worker = suspects(broker)
    for _ in range(3):
        worker.reconnect()
        worker.turn()
        worker.turn()
    assert counted_starts(broker) == [1, 0, 1]
    assert sorted(worker.start()) == ["a:1", "b:1"]


def test_what_runs_again_after_its_slot_came_back_runs_under_the_tenure_of_today(broker: MemoryBroker) -> None:
    """Guards: the epoch is a fencing token; that of an earlier tenure would let a zombie's effects go before ours."""
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    entry = worker.start()["a:1"]
    worker.state.slots.close(
        SLOT
    )  # evicted, or the store was lost: while it runs the slot comes back under a higher epoch
    worker.open(8)
    worker.state.again(entry, NOW, counted=False)
    worker.turn()
    assert worker.start()["a:1"] is entry
    assert entry.content.delivery.tenure.epoch == 8


# -- A broker that comes back with an older copy of its data ------------------------------------


def rolled_back(broker: MemoryBroker, copy: MemoryBroker) -> None:
    """Let the broker lose what it learnt since the copy was made."""
    broker.slots = deepcopy(copy.slots)


def copied(broker: MemoryBroker) -> MemoryBroker:
    copy = MemoryBroker()
    copy.slots = deepcopy(broker.slots)
    return copy


def test_a_broker_that_counts_tags_again_does_not_lose_a_message_that_waits() -> None:
    """Guards: the acknowledgement of a delivery from before named another message by then, and deleted it unrun."""
    broker = MemoryBroker()
    for body in ("p:1", "l:1", "l:2", "b:1"):
        broker.publish(SLOT, body.encode())
    worker = Worker(broker)
    worker.concurrency = 3
    worker.open(1)
    worker.fetch(2)
    started = worker.start()
    copy = copied(broker)
    worker.state.end(started["p:1"], ACK, NOW)
    worker.turn()  # p:1 is confirmed, l:2 and b:1 are fetched
    started |= worker.start()
    assert sorted(started) == ["b:1", "l:1", "p:1"], "l:2 waits behind l:1"
    rolled_back(broker, copy)
    worker.reconnect()
    worker.turn()  # the next numbers go to other messages than before
    for name in ("b:1", "l:1"):
        worker.state.end(started[name], ACK, NOW)
    ran = worker.run_all()
    assert sorted(ran) == ["l:2", "p:1"], "what ended here is not run again, but for p:1, whose end was confirmed"
    assert not broker.slot(*SLOT).flight and not broker.slot(*SLOT).waiting


def test_what_runs_while_the_broker_goes_back_is_delivered_again_and_ends_with_the_run(broker: MemoryBroker) -> None:
    copy = copied(broker)
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    rolled_back(broker, copy)
    worker.reconnect()
    worker.turn()
    assert worker.start() == {}, "both keys are locked by what runs"
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    assert worker.run_all() == ["a:2"]


def test_a_broker_that_goes_back_behind_an_open_connection_is_noticed_by_its_numbers() -> None:
    """A proxy may keep the connection while the server behind it is another."""
    broker = MemoryBroker()
    for body in (b"a:1", b"a:2"):
        broker.publish(SLOT, body, priority=3)
    worker = Worker(broker)
    worker.open(1)
    copy = copied(broker)
    worker.turn()
    started = worker.start()
    rolled_back(broker, copy)
    broker.publish(SLOT, b"c:1")  # it comes first, and so under the tag that a:1 has had
    worker.state.slots.look_into(SLOT)
    worker.turn()
    assert worker.state.slots.to_open, "the numbers of the deliveries went back"
    worker.open_all()
    worker.state.end(started["a:1"], ACK, NOW)
    assert sorted(worker.run_all()) == ["a:2", "c:1"], "a:1 has ended, and the rest runs once"
    assert not broker.slot(*SLOT).flight


def test_a_refused_mark_leaves_a_death_counted() -> None:
    """Guards: with a broker that flaps, a task that kills its process ran nine times at a limit of five."""
    broker = MemoryBroker()
    broker.publish(SLOT, b"a:1")
    worker = Worker(broker, max_attempts=3)
    worker.open(1)
    runs = 0
    for _ in range(9):
        worker.turn()
        worker.turn()  # a start that needs a mark gets it now
        for entry in worker.start().values():
            runs += 1
            worker.state.again(entry, NOW, counted=True)
        worker.reconnect()
    assert runs == 3
    assert reasons(worker) == ["started 3 times and never finished: its process died each time"]


@pytest.mark.parametrize("lost", [True, False], ids=["its answer was lost", "it never arrived"])
def test_a_mark_that_was_not_answered_counts_once(broker: MemoryBroker, lost: bool) -> None:
    worker = suspects(broker)
    started = worker.start()
    worker.state.end(started["b:1"], ACK, NOW)
    worker.turn()
    worker.state.again(started["a:1"], NOW, counted=True)
    dispositions = worker.state.dispositions(NOW + 60)
    if lost:
        worker.queues.fetch([], dispositions, NOW)
    worker.reconnect()
    worker.turn()
    worker.turn()
    assert counted_starts(broker)[0] == 2
    assert "a:1" in worker.start()


def test_a_burial_whose_answer_was_lost_does_not_bury_what_a_person_puts_back(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    worker.state.end(worker.start()["b:1"], End(Outcome.BURY, reason="rejected"), NOW)
    worker.queues.fetch([], worker.state.dispositions(NOW + 60), NOW)
    worker.reconnect()
    worker.turn()
    (dead,) = worker.queues.dead("ks")
    assert worker.queues.requeue("ks", dead.id)
    worker.state.slots.look_into(SLOT)
    assert "b:1" in worker.run_all()


def test_no_more_is_fetched_while_what_waits_is_too_many_bytes_and_one_message_always_fits() -> None:
    broker = MemoryBroker()
    for body in (b"a:" + b"1" * 500, b"a:2", b"a:3"):
        broker.publish(SLOT, body)
    worker = Worker(broker, max_waiting_bytes=100)
    worker.open(1)
    assert worker.state.gate.bytes == 0 and worker.state.wants(NOW, company=True)
    broker.publish(SLOT, b"a:4")
    worker.turn()
    worker.turn()
    assert worker.state.gate.bytes >= 500
    broker.publish(SLOT, b"b:1")
    worker.state.slots.look_into(SLOT)
    assert worker.state.wants(NOW, company=True) == []
    (started,) = worker.start().values()
    assert worker.state.gate.bytes < 100 and worker.state.wants(NOW, company=True)
    worker.state.again(started, NOW, counted=False)
    assert worker.state.gate.bytes >= 500
    worker.state.stop(SLOT, NOW)
    assert worker.state.gate.bytes == 0


# -- A slot the broker cannot work on ------------------------------------------------------------


def test_a_slot_that_cannot_be_opened_is_tried_again_later_with_the_next_count(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(broker)
    state = worker.state
    state.slots.open(SLOT, 1, "w-0")
    tenure = state.slots.openings()[0].tenure
    state.slots.answered(tenure, SlotBroken("key x is a string, not a list"), NOW)
    assert not state.slots.openings() and state.slots.opens_at is not None and state.slots.opens_at > NOW
    assert "slot 1 of keyspace ks: key x is a string, not a list." in caplog.text
    state.slots.open_again(NOW)
    assert not state.slots.openings()
    pauses = []
    for _ in range(10):
        now = state.slots.opens_at or 0.0
        state.slots.open_again(now)
        again = state.slots.openings()[0].tenure
        assert again.open_count > tenure.open_count
        state.slots.answered(again, SlotBroken("key x is a string, not a list"), now)
        pauses.append((state.slots.opens_at or 0.0) - now)
    assert pauses == sorted(pauses) and 20 < pauses[-1] <= 31
    state.slots.open_again(state.slots.opens_at or 0.0)
    worker.open_all()
    worker.turn()
    assert sorted(worker.start()) == ["a:1", "b:1"]


def test_a_broken_slot_is_not_asked_for_until_its_pause_is_over(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    state = worker.state
    state.take_in(Fetched(broken={SLOT: "key x is a string, not a list"}), NOW)
    assert state.wants(NOW, company=True) == []
    (want,) = state.wants(NOW + 1.0, company=True)
    state.slots.mended([want], Fetched())
    assert state.wants(NOW, company=True) == [want]


def test_a_disposition_that_the_broker_has_no_room_for_goes_again_and_its_key_waits(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    entries = worker.start()
    worker.state.end(entries["a:1"], ACK, NOW)
    (disposition,) = worker.state.dispositions(NOW + 60)
    worker.state.take_in(Fetched(failed=[(disposition, "the server is full")]), NOW)
    assert worker.state.dispositions(NOW) == [] and len(worker.state.outbox) == 1
    assert (worker.state.outbox.goes_at or 0) > NOW
    worker.turn()
    assert sorted(worker.start()) == ["a:2"], "it went again, and freed its key"


def test_a_stopped_slot_forgets_that_it_was_to_be_opened_again(broker: MemoryBroker) -> None:
    state = Worker(broker).state
    state.slots.open(SLOT, 1, "w-0")
    tenure = state.slots.openings()[0].tenure
    state.slots.answered(tenure, SlotBroken("no"), NOW)
    state.stop(SLOT, NOW)
    assert state.slots.opens_at is None


# -- Slots, their bytes and their turns ----------------------------------------------------------


def test_a_slot_is_not_given_away_while_a_task_runs_whose_message_the_broker_has_forgotten() -> None:
    broker = MemoryBroker()
    for body in (b"a:1", b"b:1"):
        broker.publish(SLOT, body)
    copy = copied(broker)
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    rolled_back(broker, copy)
    worker.reconnect()
    worker.state.stop(SLOT, NOW)
    worker.state.again(started["a:1"], NOW, counted=False)
    assert Drained(1) not in worker.reports, "b:1 runs"
    worker.state.end(started["b:1"], ACK, NOW)
    worker.turn()
    assert worker.reports[-1] == Drained(1)


def test_a_message_whose_mark_is_taken_back_goes_back_to_its_queue_if_its_slot_is_opened_here_again(
    broker: MemoryBroker,
) -> None:
    """Guards: it stayed in flight as if it ran, nobody ran it, and later messages of its key went before it."""
    worker = suspects(broker)
    worker.state.stop(SLOT, NOW)
    worker.state.slots.close(SLOT)
    worker.open(3)
    ran = worker.run_all()
    assert sorted(ran) == ["a:1", "a:2", "b:1"] and ran.index("a:1") < ran.index("a:2")
    assert not broker.slot(*SLOT).flight


def test_a_slot_that_brought_messages_lets_the_others_go_first() -> None:
    rounds = Rounds()
    rounds.note([("ks", 1), ("ks", 2), ("ks", 3)])
    rounds.pick(3, lambda _: True)
    rounds.served([("ks", 1)])
    assert rounds.pick(3, lambda _: True) == [("ks", 2), ("ks", 3), ("ks", 1)]


def test_one_slot_does_not_fill_the_memory_for_all() -> None:
    broker = MemoryBroker()
    other = ("ks", 2)
    for number in range(9):
        broker.publish(SLOT, b"a:%d" % number + b"x" * 20)
    broker.publish(other, b"b:1")
    worker = Worker(broker, max_waiting_bytes=160)
    worker.open(1)
    worker.state.slots.open(other, 1, worker.incarnation)
    worker.open_all()
    for _ in range(5):
        worker.fetch(1)
    assert worker.state.gate.bytes_of(SLOT) < 80, "an eighth of the bytes, and one message more"
    assert "b:1" in {entry.content.envelope.task_id for entry in worker.state.take(9, lambda _: True)}


def test_a_slot_that_could_not_be_opened_is_left_alone_until_its_pause_is_over(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    worker.state.connected(NOW)
    (opening,) = worker.state.slots.openings()
    worker.state.slots.answered(opening.tenure, SlotBroken("a key of a wrong type"), NOW)
    assert worker.state.wants(NOW, company=True) == [] and not worker.state.slots.to_open
    worker.state.take_in(Fetched(lost={SLOT}), NOW)
    assert not worker.state.slots.to_open, "its pause is not over"
    assert worker.state.slots.opens_at is not None
    worker.state.slots.open_again(worker.state.slots.opens_at)
    assert worker.state.slots.to_open


@pytest.mark.parametrize("answer", [SlotBroken("a key of a wrong type"), SlotHeld()])
@pytest.mark.parametrize("given_up", [False, True])
def test_a_slot_that_is_let_go_while_its_opening_is_postponed_is_not_opened_again(
    broker: MemoryBroker, answer: SlotBroken | SlotHeld, given_up: bool
) -> None:
    """Guards: it was opened after it was given away, and its messages ran beside those of the next owner."""
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started, slots = worker.start(), worker.state.slots
    worker.state.stop(SLOT, NOW)
    worker.state.connected(NOW)  # a new connection opens it, to settle what runs
    (opening,) = slots.openings()
    slots.answered(opening.tenure, answer, NOW)
    assert slots.opens_at is not None
    for entry in started.values():
        worker.state.end(entry, ACK, NOW)
    if given_up:
        slots.give_up_ended()
    else:
        worker.turn()
    assert worker.reports == [Opened(1, 1), Drained(1)]
    assert slots.opens_at is None
    slots.open_again(NOW + 60)
    assert not slots.openings()


def test_a_mark_that_one_slot_refuses_holds_up_no_other(broker: MemoryBroker) -> None:
    worker = suspects(broker)
    worker.concurrency = 1
    for entry in worker.start().values():
        worker.state.again(entry, NOW, counted=True)
    (mark,) = worker.state.dispositions(NOW)
    worker.state.take_in(Fetched(failed=[(mark, "a key of a wrong type")]), NOW)
    (other,) = worker.state.dispositions(NOW + 0.1)
    assert mark.outcome is other.outcome is Outcome.COUNT_START and mark.tag != other.tag


def test_a_start_that_a_slot_refuses_to_count_for_long_is_counted_when_the_slot_works_again(
    broker: MemoryBroker,
) -> None:
    worker = suspects(broker)
    worker.concurrency = 2
    for entry in worker.start().values():
        worker.state.again(entry, NOW, counted=True)
    now = NOW
    for _ in range(6):
        marks = worker.state.dispositions(now)
        assert marks
        worker.state.take_in(Fetched(failed=[(mark, "a key of a wrong type") for mark in marks]), now)
        assert worker.state.backoff.next_due is not None
        now += 30
        assert worker.state.rouse(now)
    assert worker.state.dispositions(now)


def test_what_is_postponed_goes_with_the_new_connection_and_what_comes_after_it_goes_too(broker: MemoryBroker) -> None:
    """Guards: then nothing went any more, unless somebody was in a hurry."""
    worker = Worker(broker)
    worker.open(1)
    worker.turn()
    started = worker.start()
    worker.state.end(started["b:1"], ACK, NOW)
    (disposition,) = worker.state.dispositions(NOW + 60)
    worker.state.take_in(Fetched(failed=[(disposition, "full")]), NOW)
    worker.state.connected(NOW)
    assert worker.state.outbox.goes_at is not None and worker.state.outbox.goes_at < NOW + 1


def test_a_marked_message_that_rests_is_settled_before_its_slot_is_given_away(broker: MemoryBroker) -> None:
    worker = suspects(broker)
    started = worker.start()
    for entry in started.values():
        worker.state.rest(entry, entry.turn, NOW, after_run=False, cause="the backend is away")
    worker.state.stop(SLOT, NOW)
    assert Drained(1) not in worker.reports, "their marks are to be taken back first"
    worker.turn()
    assert worker.reports[-1] == Drained(1)
    assert counted_starts(broker) == [0, 0, 0]
