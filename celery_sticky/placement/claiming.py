"""Placement decisions: looks up keys that have work here in the placement store and updates the delivery state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import DeliveryState
from celery_sticky.errors import NotPinned
from celery_sticky.ownership.view import View
from celery_sticky.placement.flow import Courier, Flow
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.placement.rules import KeyPlan, Scene
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.flow import ask
from celery_sticky.stores.placement import Answer, PlacementStore, Said, Wish

logger = logging.getLogger("celery_sticky.placer")

AT_ONCE = 500
"""Keys in one request."""
ROUNDS = 4
"""Maximum number of consecutive requests while members and pins keep changing."""
PAUSE = 0.05
"""Seconds between checks of keys that wait for a claim or could be released."""
NOBODY_PAUSE = 0.5
"""Seconds before another request for a key that no worker takes."""


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """A lower bound of an incarnation's heartbeat counter."""

    incarnation: str = ""
    least: int = 0
    forgotten: bool = False
    """The store counted fewer heartbeats: it is an older copy."""

    def after(self, before: Heartbeats) -> Heartbeats:
        """Return the bound after one more heartbeat, which adds one whatever the store counted."""
        if before.incarnation != self.incarnation:
            return self
        least = max(self.least, before.least + 1)
        return replace(self, least=least, forgotten=self.least < least)


class Decisions:
    """The decisions on the keys of one keyspace. `clock` returns seconds and is the caller's clock.

    Another thread may replace `beats`.
    """

    def __init__(
        self, keyspace: str, worker: str, courier: Courier, jobs: PlacedJobs, clock: Callable[[], float]
    ) -> None:
        self._name, self._mine = keyspace, WorkerQueue(worker)
        self._courier, self._jobs, self._clock = courier, jobs, clock
        self._calls = 0
        self.heartbeats = Heartbeats()

    def take(self, incarnation: str, scene: Callable[[], Scene], adopt: Callable[[View | None], None]) -> Flow[bool]:
        """Decide on the keys that are due; True if more are due. `adopt` takes a newer document, for `scene`."""
        if self.heartbeats.forgotten:
            # At once, even if no key is due: others may join by this document and claim what runs here.
            yield from self._ask(incarnation, scene(), [], self._clock())
        for _ in range(ROUNDS):
            seen, now = scene(), self._clock()
            plans = self._plan(seen, now)
            if not plans:
                return False
            changed, view = yield from self._ask(incarnation, seen, plans, now)
            if changed:
                adopt(view)
                if scene().view is seen.view:  # the document is missing or older: the member handles that
                    self._put_off([plan.question.key for plan in plans], now + PAUSE)
        return True

    def _plan(self, scene: Scene, now: float) -> list[KeyPlan]:
        questions = self._courier.consult(
            lambda delivery_state: delivery_state.claims.questions(self._name, now, AT_ONCE)
        )
        return [KeyPlan.make(question, scene) for question in questions]

    def give_back(self, incarnation: str) -> Flow[None]:
        """Release keys that have nothing left here."""
        keys = self._courier.consult(lambda delivery_state: delivery_state.claims.to_release(self._name))
        for start in range(0, len(keys), AT_ONCE):
            part = keys[start : start + AT_ONCE]
            self._calls += 1
            yield from ask(PlacementStore.release, incarnation, self._calls, part)
            self._courier.consult(lambda delivery_state, part=part: delivery_state.claims.released(self._name, part))  # type: ignore[misc]

    def _ask(self, incarnation: str, scene: Scene, plans: list[KeyPlan], now: float) -> Flow[tuple[bool, View | None]]:
        """Request claims; return whether the document changed, and the new document."""
        wishes = []
        for plan in plans:
            question = plan.question
            wishes.append(Wish(question.key, question.pin, plan.runs(self._mine) and not question.claimed))
        wanted = [wish.key for wish in wishes if wish.run]
        self._courier.consult(lambda delivery_state: delivery_state.claims.asking(self._name, wanted))
        self._calls += 1
        heartbeats = self.heartbeats
        least = heartbeats.least if heartbeats.incarnation == incarnation else 0
        claims = yield from ask(PlacementStore.claim, incarnation, self._calls, scene.version, wishes, least)
        if not claims.member:
            self._put_off([wish.key for wish in wishes], now + PAUSE)  # the member will notice and tell us
        elif not claims.changed:
            self._courier.decide(partial(self._tell, incarnation, scene, plans, claims.answers, now))
        return claims.changed, claims.view

    def _put_off(self, keys: list[str], when: float) -> None:
        def put_off(delivery_state: DeliveryState) -> None:
            for key in keys:
                delivery_state.claims.ask_at(self._name, key, when)

        self._courier.consult(put_off)

    def _tell(
        self,
        incarnation: str,
        scene: Scene,
        plans: list[KeyPlan],
        answers: Mapping[str, Answer],
        now: float,
        delivery_state: DeliveryState,
        told: float,
    ) -> None:
        """Apply what was decided at `now` to the delivery state; do nothing if this worker's incarnation changed."""
        claims = delivery_state.claims
        if claims.incarnation(self._name) != incarnation:
            return
        for plan in plans:
            key = plan.question.key
            answer = answers[key]
            if answer.said is Said.PINNED:
                claims.pinned(self._name, key, answer.by)
                continue
            claims.ask_at(self._name, key, now + (NOBODY_PAUSE if plan.placement.nobody else PAUSE))
            if answer.said is Said.GRANTED:
                claims.granted(self._name, key, answer.token, now)
            elif answer.said is Said.HELD:
                claims.held(self._name, key, now)
            elif plan.question.claimed and not plan.placement.nobody:
                claims.reviewed(self._name, key, now, elsewhere=not plan.runs(self._mine))
            if plan.question.job:
                self._jobs.tell(delivery_state, plan, answer)
            unstarted = claims.unstarted(self._name, key)
            waiting = [entry for entry in unstarted if not self._settle(delivery_state, plan, entry, scene, told)]
            if waiting:
                claims.ask_at(self._name, key, now + PAUSE)

    def _settle(self, delivery_state: DeliveryState, plan: KeyPlan, entry: Entry, scene: Scene, told: float) -> bool:
        """Bury a message, pass it on, or leave it here; False if it waits and should be looked at again soon."""
        placement = plan.placement
        if placement.refusal is not None:
            # A client that goes leaves some messages behind; that is no error of the system.
            level = logging.INFO if isinstance(placement.refusal, NotPinned) else logging.ERROR
            logger.log(level, "a message of keyspace %s is buried: %s", self._name, placement.refusal)
            delivery_state.refuse(entry, placement.refusal, told)
        elif (to := plan.onward(entry.slot[1], self._mine)) is not None:
            return delivery_state.move(entry, to, told, scene.seen(plan.question.pin))
        return True
