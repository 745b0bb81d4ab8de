"""The director of a keyspace that directs keys: it claims keys, and passes messages on that belong elsewhere.

A thread of its own with a client of its own, beside the courier. It opens this worker's direct queue and those of
workers that are gone and whose heir it is; it asks the directory of every key that has something here, and tells the
desk: run, wait, pass on, bury. Each decision is taken on the newest members and pins there are: a claim names those it
was thought out with, and is refused where they have changed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from celery_sticky.assignment import Keyspace, Worker, belongs, workers_of
from celery_sticky.errors import AssignmentFailed, NotPinned, NoWorker, StickyError, StoreUnavailable
from celery_sticky.keys import Slot, direct
from celery_sticky.ownership.events import DirectClosed, Drained, Event, OpenRefused
from celery_sticky.ownership.gate import Entry
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.queues.base import SlotQueues
from celery_sticky.stores.directory import NO_VERSION, Answer, Directory, PinMoved, Said, Wish
from celery_sticky.worker.courier import Courier
from celery_sticky.worker.desk import Desk
from celery_sticky.worker.direct_queues import DirectQueues
from celery_sticky.worker.key_claims import Question
from celery_sticky.worker.lease import boottime
from celery_sticky.worker.lost_pins import LostPins
from celery_sticky.worker.member import Snapshot
from celery_sticky.worker.native import start_thread

logger = logging.getLogger("celery_sticky.director")

AT_ONCE = 500
"""Keys asked of in one request."""
ROUNDS = 4
"""Requests in a row while members and pins change under them."""
PAUSE = 0.05
"""Seconds between two looks at the keys that wait for a claim, or that could be given back."""
IDLE = 5.0
"""Seconds between two looks for direct queues of workers that are gone."""
BROKEN_PAUSE = 0.1
NOBODY_PAUSE = 0.5
"""Seconds until a key is asked of again that no worker takes."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is thought of a key, before the directory was asked."""

    question: Question
    place: Slot | None = None
    refusal: StickyError | None = None
    nobody: bool = False

    def runs(self, mine: Slot) -> bool:
        """Whether any of its messages is to run here."""
        return self.place is not None and any(self.here(slot, mine) for slot in self.question.slots)

    def here(self, slot: Slot, mine: Slot) -> bool:
        """Whether a message from this queue is to run here."""
        foreign = isinstance(slot, str) and slot != mine
        return not foreign and self.place in (slot, mine)


class Director:
    """One worker's part in the directing of a keyspace. Any thread may call its public methods; they do not wait."""

    def __init__(
        self,
        keyspace: Keyspace,
        slots: int,
        worker: str,
        open_directory: Callable[[], Directory],
        connect: Callable[[], SlotQueues],
        courier: Courier,
        report: Callable[[Event], None],
        pins_lost: Callable[[frozenset[str]], None],
    ) -> None:
        self.keyspace = keyspace
        self._name, self._slots, self._worker, self._mine = keyspace.name, slots, worker, direct(worker)
        self._open_directory = open_directory
        self._courier, self._report = courier, report
        self._inbox: deque[Event | _Observed] = deque()
        self._directory: Directory | None = None
        self._joining: Directory | None = None
        self._view: View | None = None
        self._workers: tuple[Worker, ...] = ()
        self._incarnation = ""
        self._calls = 0
        self._queues = DirectQueues(keyspace.name, worker, connect, courier)
        self._lost_pins = LostPins(worker, pins_lost, lambda: courier.trusts(keyspace.name))
        self._known_as = ""
        self._out_of_reach = False
        self._running = True
        self._ended = False

    def start(self) -> None:
        """Begin to work."""
        start_thread(self._run, f"sticky-director-{self._name}")

    def finish(self, timeout: float) -> None:
        """End the thread, at most `timeout` seconds later."""
        self._running = False
        deadline = time.monotonic() + timeout
        while not self._ended and time.monotonic() < deadline:
            self.wake()
            time.sleep(0.01)

    def wake(self) -> None:
        """There is something to decide."""
        if (directory := self._directory) is not None:
            directory.wake()

    def report(self, event: Event) -> None:
        """Take in what the courier says of a direct queue."""
        self._inbox.append(event)
        self.wake()

    # -- for the member, in its thread ---------------------------------------------------------

    def joining(self, incarnation: str) -> None:
        """Enlist before others can see us: should we die at once, somebody must look after our queue."""
        if self._joining is None:
            self._joining = self._open_directory()
        self._joining.enlist(self._worker, incarnation)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what the member knows. Before it may join anew, nothing of the old membership is open here."""
        incarnation = snapshot.incarnation if snapshot.phase is Phase.IN else ""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._queues.close_all()
            self._courier.decide(lambda desk: desk.claims.serve(self._name, incarnation, self._mine))
        self._inbox.append(_Observed(snapshot))
        self.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._running:
            try:
                if self._directory is None:
                    self._directory = self._open_directory()
                    self._directory.watch(0.0)  # subscribes
                self._turn(self._directory)
                self._out_of_reach = False
            except StoreUnavailable as error:
                if not self._out_of_reach:
                    self._out_of_reach = True
                    logger.warning("keyspace %s: %s; nothing new is claimed until it answers", self._name, error)
                time.sleep(BROKEN_PAUSE)
            except Exception:
                logger.exception("keyspace %s: the director met an error it does not know", self._name)
                time.sleep(BROKEN_PAUSE * 10)
        for directory in (self._directory, self._joining):
            if directory is not None:
                directory.close()
        self._ended = True

    def _turn(self, directory: Directory) -> None:
        while self._inbox:
            self._take_in(self._inbox.popleft())
        more = False
        if self._incarnation and self._view is not None:
            self._look_after_queues(directory, self._view)
            more = self._decide(directory)
            self._give_back(directory)
            if self.keyspace.pins:
                self._lost_pins.look_after(directory)
        busy = self._courier.consult(lambda desk: len(desk.claims))
        pause = 0.0 if more or self._inbox else PAUSE if busy or self._leaving or self._queues.outbid else IDLE
        for heard in directory.watch(pause):
            if isinstance(heard, PinMoved) and heard.incarnation == self._incarnation:
                self._lost_pins.moved()
                self._courier.consult(lambda desk, key=heard.key: desk.claims.doubt(self._name, key))  # type: ignore[misc]

    def _take_in(self, event: Event | _Observed) -> None:
        match event:
            case _Observed(snapshot):
                if snapshot.incarnation != self._known_as or snapshot.phase is not Phase.IN:
                    self._known_as = snapshot.incarnation
                    self._queues.forget_all()
                if snapshot.phase is Phase.IN:
                    self._lost_pins.joined(snapshot.incarnation)
                if snapshot.view is not None:
                    self._adopt(snapshot.view)
            case OpenRefused(str(name), fence):
                self._queues.refused(name, fence)
            case Drained(str(name)) if self._queues.drained(name):
                self._report(DirectClosed(self._incarnation))

    def _adopt(self, view: View | None) -> None:
        old = self._view
        if view is None or (old is not None and (view.generation, view.version) <= (old.generation, old.version)):
            return
        self._view, self._workers = view, workers_of(view)
        if old is None or (old.members, old.owner) != (view.members, view.owner):
            self._queues.members_changed()
            self._courier.consult(lambda desk: desk.claims.review(self._name))

    @property
    def _leaving(self) -> bool:
        me = self._view.members.get(self._worker) if self._view is not None else None
        return me is not None and me.state is MemberState.LEAVING and me.incarnation == self._incarnation

    def _look_after_queues(self, directory: Directory, view: View) -> None:
        me = view.members.get(self._worker)
        if me is None or me.incarnation != self._incarnation:
            return
        if self._queues.outbid:
            self._adopt(directory.look(NO_VERSION, ()).view)  # whose the fence is must be read before it is outbid
        if self._queues.look_after(directory, self._view or view, self._incarnation, leaving=self._leaving):
            self._report(DirectClosed(self._incarnation))

    # -- keys ----------------------------------------------------------------------------------

    def _decide(self, directory: Directory) -> bool:
        """Decide of the keys that are due; True if there are more."""
        return all(self._decide_once(directory, boottime()) for _ in range(ROUNDS))

    def _decide_once(self, directory: Directory, now: float) -> bool:
        questions = self._courier.consult(lambda desk: desk.claims.questions(self._name, now, AT_ONCE))
        if questions:
            self._ask(directory, [self._plan(question) for question in questions], now)
        return bool(questions)

    def _plan(self, question: Question) -> _Plan:
        assert self._view is not None
        try:
            place = belongs(self.keyspace, question.key, self._slots, self._view, self._workers, question.pin or None)
        except NoWorker:
            return _Plan(question, nobody=True)
        except (NotPinned, AssignmentFailed) as error:
            return _Plan(question, refusal=error)
        return _Plan(question, place)

    def _ask(self, directory: Directory, plans: list[_Plan], now: float) -> None:
        view, incarnation = self._view, self._incarnation
        assert view is not None
        wishes = []
        for plan in plans:
            question = plan.question
            wishes.append(Wish(question.key, question.pin, plan.runs(self._mine) and not question.claimed))
        wanted = [wish.key for wish in wishes if wish.run]
        self._courier.consult(lambda desk: desk.claims.asking(self._name, wanted))
        self._calls += 1
        claims = directory.claim(incarnation, self._calls, (view.version, view.generation), wishes)
        if not claims.member:
            self._put_off(plans, now + PAUSE)  # the member finds out, and tells us
        elif claims.changed:
            self._adopt(claims.view)
            if self._view is view:
                self._put_off(plans, now + PAUSE)  # a document is missing, or older: the member sees to it
        else:
            self._courier.decide(lambda desk: self._tell(desk, incarnation, plans, claims.answers, now))

    def _put_off(self, plans: list[_Plan], when: float) -> None:
        def put_off(desk: Desk) -> None:
            for plan in plans:
                desk.claims.ask_at(self._name, plan.question.key, when)

        self._courier.consult(put_off)

    def _tell(
        self, desk: Desk, incarnation: str, plans: list[_Plan], answers: Mapping[str, Answer], now: float
    ) -> None:
        """Tell the desk what was decided; nothing if this worker is another incarnation by now."""
        claims = desk.claims
        if claims.incarnation(self._name) != incarnation:
            return
        for plan in plans:
            key = plan.question.key
            answer = answers[key]
            if answer.said is Said.PINNED:
                claims.pinned(self._name, key, answer.by)
                continue
            claims.ask_at(self._name, key, now + (NOBODY_PAUSE if plan.nobody else PAUSE))
            if answer.said is Said.GRANTED:
                claims.granted(self._name, key, answer.token, now)
            elif answer.said is Said.HELD:
                claims.held(self._name, key, now)
            elif plan.question.claimed and not plan.nobody:
                claims.reviewed(self._name, key, now, elsewhere=not plan.runs(self._mine))
            for entry in claims.unstarted(self._name, key):
                self._settle(desk, plan, entry)

    def _settle(self, desk: Desk, plan: _Plan, entry: Entry) -> None:
        if plan.refusal:
            logger.error("a message of keyspace %s is buried: %s", self._name, plan.refusal)
            desk.refuse(entry, plan.refusal, time.time())
        elif plan.place is not None and not plan.here(entry.slot[1], self._mine):
            view = self._view
            seen = f"{view.generation} {view.version} {plan.question.pin}" if view is not None else ""
            desk.move(entry, plan.place, time.time(), seen)

    def _give_back(self, directory: Directory) -> None:
        keys = self._courier.consult(lambda desk: desk.claims.to_release(self._name))
        for start in range(0, len(keys), AT_ONCE):
            part = keys[start : start + AT_ONCE]
            self._calls += 1
            directory.release(self._incarnation, self._calls, part)
            self._courier.consult(lambda desk, part=part: desk.claims.released(self._name, part))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class _Observed:
    snapshot: Snapshot
