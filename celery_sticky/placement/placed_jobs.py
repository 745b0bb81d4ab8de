"""The jobs of a placed keyspace in this worker: the placer claims their keys, the keeper runs them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.placement.flow import Courier, Flow
from celery_sticky.placement.job_keys import JobKeys
from celery_sticky.placement.rules import Duty, KeyPlan, Scene
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.flow import ask
from celery_sticky.stores.placement import Answer, Look, PlacementStore, Said, Version

logger = logging.getLogger("celery_sticky.placer")

AT_ONCE = 2000
"""Keys to decide on in one go, before anything else gets a turn."""
LOOK_AT_ONCE = 500
"""Keys whose pins are looked up in one request; also the maximum per second for the routine sweep."""
SWEEP_EVERY = 1.0
"""Seconds between sweeps for pins that changed without a signal."""


class PlaceKeeper(Protocol):
    """Runs the jobs. No method waits."""

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Open the place under this token, in this membership; `idle`: why no job may start in it, or empty."""

    def stop(self, slot: Slot) -> None:
        """Stop what runs in the place; calls `PlacedJobs.drained` when nothing is left."""

    def close(self, slot: Slot) -> None:
        """Close the place: another worker already has it."""


class PlacedJobs:
    """The keys whose jobs run here. The keeper calls `wanted`, `listed` and `drained` from its thread."""

    def __init__(
        self,
        keyspace: str,
        courier: Courier,
        membership: Callable[[], int],
        wake: Callable[[], None],
        clock: Callable[[], float],
        *,
        pins: bool,
    ) -> None:
        self.keeper: PlaceKeeper | None = None
        """None if the keyspace has no jobs."""
        self._name, self._courier, self._newest_membership, self._wake = keyspace, courier, membership, wake
        self._clock, self._pins = clock, pins
        self._keys = JobKeys(pins=pins)
        self._inbox: deque[Callable[[], object]] = deque()
        self._term = 0
        self._sweep_at = 0.0

    # -- for the keeper ------------------------------------------------------------------------

    def wanted(self, places: Collection[KeyPlace]) -> None:
        """Note that there may be jobs in these places: something changed there."""
        keys = [place.key for place in places]
        # Every worker hears every notification of a job.
        if self._inbox or not all(map(self._keys.knows, keys)):
            self._post(partial(self._keys.wanted, keys))

    def listed(self, places: Collection[KeyPlace]) -> None:
        """Note that there are jobs in these places and in no others."""
        self._post(partial(self._keys.listed, [place.key for place in places]))

    def drained(self, place: KeyPlace, epoch: int, *, vacant: bool) -> None:
        """Note that nothing runs in a place held here under this epoch; `vacant`: it has no jobs any more."""
        self._post(partial(self._drained, place.key, epoch, vacant=vacant))

    def _post(self, call: Callable[[], object]) -> None:
        self._inbox.append(call)
        self._wake()

    # -- for the placer: in the member's thread, under the courier's lock -----------------------

    def serve(self, held: Collection[str]) -> None:
        """Drop what was held of these keys, because a membership ended or began."""
        self._term = self._newest_membership()
        if self.keeper is not None:
            for key in held:
                self.keeper.close(KeyPlace(key))

    # -- for the placer, in its thread ---------------------------------------------------------

    @property
    def held(self) -> bool:
        """True if jobs are here or may arrive."""
        return self._keys.held

    @property
    def more(self) -> bool:
        """True if there is more to do at once."""
        return bool(self._inbox) or self._keys.more

    @property
    def pause(self) -> float:
        """Seconds until the next routine work."""
        return SWEEP_EVERY if len(self._keys) else float("inf")

    def take_in(self) -> None:
        """Apply what the keeper reported."""
        while self._inbox:
            try:
                self._inbox[0]()
            finally:
                self._inbox.popleft()  # only afterwards: `wanted` checks whether the inbox is empty

    def reset(self) -> None:
        """Forget all claims, because a membership ended or began."""
        self._keys.reset()

    def review(self) -> None:
        """Re-check all keys after members or slot owners changed."""
        self._keys.review()

    def pin_changed(self, key: str) -> None:
        """Note that the pin of a key changed."""
        self._keys.pin_changed(key)

    def look(self, known: Version) -> Flow[Look | None]:
        """Look up pins that may have changed."""
        if self._pins and (now := self._clock()) >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY
            self._keys.sweep(LOOK_AT_ONCE)
        if not (keys := self._keys.to_look(LOOK_AT_ONCE)):
            return None
        look = yield from ask(PlacementStore.look, known, keys)
        self._keys.looked(keys, look.pins)
        return look

    def decide(self, scene: Scene, incarnation: str) -> None:
        """Decide on keys that changed, and carry out the decisions."""
        changes = self._keys.decide(scene, self._clock(), AT_ONCE)
        if changes.failed:
            logger.error("jobs of keyspace %s wait: %s", self._name, changes.failed)
        busy = self._courier.consult(
            lambda delivery_state: self._claim(delivery_state, incarnation, changes.want, changes.leave)
        )
        if self.keeper is not None:
            for key in [*changes.stop, *self._keys.without_tasks(busy)]:
                self.keeper.stop(KeyPlace(key))

    def _claim(
        self, delivery_state: DeliveryState, incarnation: str, want: list[tuple[str, str]], leave: list[str]
    ) -> Collection[str]:
        """Carry out these changes; return the leaving keys of which tasks are left here."""
        claims = delivery_state.claims
        if claims.incarnation(self._name) != incarnation:
            return self._keys.leaving.keys()  # this membership is over: `reset` follows
        for key, pin in want:
            claims.want_job(self._name, key, pin)
        for key in leave:
            claims.leave_job(self._name, key)
        return claims.busy(self._name, self._keys.leaving)

    def _drained(self, key: str, token: int, *, vacant: bool) -> None:
        if self._keys.drained(key, token, self._clock(), vacant=vacant):
            self._courier.consult(lambda delivery_state: delivery_state.claims.leave_job(self._name, key))

    def tell(self, delivery_state: DeliveryState, plan: KeyPlan, answer: Answer) -> None:
        """Apply the answer for a key whose jobs wait for the claim. The caller holds the courier's lock."""
        key, claims = plan.question.key, delivery_state.claims
        if plan.duty is Duty.NONE:
            claims.leave_job(self._name, key)
            self._keys.left(key, plan.question.pin)
        elif answer.said is not Said.HELD and self.keeper is not None:
            token = claims.hold_job(self._name, key)
            self._keys.granted(key, token, plan.duty, plan.question.pin)
            self.keeper.open(KeyPlace(key), token, self._term, str(plan.placement.refusal or ""))
