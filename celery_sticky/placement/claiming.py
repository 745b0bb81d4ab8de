"""What the placer decides of keys: it asks the directory of those that have something here, and tells the desk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keys import worker_queue
from celery_sticky.ownership.view import View
from celery_sticky.placement.flow import Courier, Flow, ask
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.placement.rules import KeyPlan, Scene
from celery_sticky.stores.placement import Answer, PlacementStore, Said, Wish

logger = logging.getLogger("celery_sticky.placer")

AT_ONCE = 500
"""Keys asked of in one request."""
ROUNDS = 4
"""Requests in a row while members and pins change under them."""
PAUSE = 0.05
"""Seconds between two looks at the keys that wait for a claim, or that could be given back."""
NOBODY_PAUSE = 0.5
"""Seconds until a key is asked of again that no worker takes."""


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """What the heartbeat counter of an incarnation is at least."""

    incarnation: str = ""
    least: int = 0
    forgotten: bool = False
    """The store has counted fewer: it is an older copy."""

    def after(self, before: Heartbeats) -> Heartbeats:
        """Return the same after another beat, which has added one, whatever the store has counted."""
        if before.incarnation != self.incarnation:
            return self
        least = max(self.least, before.least + 1)
        return replace(self, least=least, forgotten=self.least < least)


class Decisions:
    """Of the keys of one keyspace. `clock` counts seconds, as that of whoever asks.

    `beats` may be replaced from another thread.
    """

    def __init__(
        self, keyspace: str, worker: str, courier: Courier, jobs: PlacedJobs, clock: Callable[[], float]
    ) -> None:
        self._name, self._mine = keyspace, worker_queue(worker)
        self._courier, self._jobs, self._clock = courier, jobs, clock
        self._calls = 0
        self.heartbeats = Heartbeats()

    def take(self, incarnation: str, scene: Callable[[], Scene], adopt: Callable[[View | None], None]) -> Flow[bool]:
        """Decide of the keys that are due; True if there are more. `adopt` takes a newer document, for `scene`."""
        if self.heartbeats.forgotten:
            # At once, whatever is due: by this document others may join, and claim what runs here.
            yield from self._ask(incarnation, scene(), [], self._clock())
        for _ in range(ROUNDS):
            seen, now = scene(), self._clock()
            plans = self._plan(seen, now)
            if not plans:
                return False
            changed, view = yield from self._ask(incarnation, seen, plans, now)
            if changed:
                adopt(view)
                if scene().view is seen.view:  # the document is missing, or older: the member sees to it
                    self._put_off([plan.question.key for plan in plans], now + PAUSE)
        return True

    def _plan(self, scene: Scene, now: float) -> list[KeyPlan]:
        questions = self._courier.consult(
            lambda delivery_state: delivery_state.claims.questions(self._name, now, AT_ONCE)
        )
        return [KeyPlan.make(question, scene) for question in questions]

    def give_back(self, incarnation: str) -> Flow[None]:
        """Give keys back of which nothing is left here."""
        keys = self._courier.consult(lambda delivery_state: delivery_state.claims.to_release(self._name))
        for start in range(0, len(keys), AT_ONCE):
            part = keys[start : start + AT_ONCE]
            self._calls += 1
            yield from ask(PlacementStore.release, incarnation, self._calls, part)
            self._courier.consult(lambda delivery_state, part=part: delivery_state.claims.released(self._name, part))  # type: ignore[misc]

    def _ask(self, incarnation: str, scene: Scene, plans: list[KeyPlan], now: float) -> Flow[tuple[bool, View | None]]:
        """Ask of keys; return whether the document is another one, and then that."""
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
            self._put_off([wish.key for wish in wishes], now + PAUSE)  # the member finds out, and tells us
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
        """Tell the desk what was decided at `now`; nothing if this worker is another incarnation by now."""
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
            for entry in claims.unstarted(self._name, key):
                self._settle(delivery_state, plan, entry, scene, told)

    def _settle(self, delivery_state: DeliveryState, plan: KeyPlan, entry: Entry, scene: Scene, told: float) -> None:
        placement = plan.placement
        if placement.refusal is not None:
            logger.error("a message of keyspace %s is buried: %s", self._name, placement.refusal)
            delivery_state.refuse(entry, placement.refusal, told)
        elif (to := plan.onward(entry.slot[1], self._mine)) is not None:
            delivery_state.move(entry, to, told, scene.seen(plan.question.pin))
