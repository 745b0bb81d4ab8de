"""What a member asks of its store: each request of the machine with what belongs to it, and the outages of the store.

A request is a flow that ends with the event for the machine. What revokes need never costs a heartbeat or a join.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from celery_sticky.errors import RecordUnusable, StickyError, StoreUnavailable
from celery_sticky.instrumentation.facts import StoreAsked
from celery_sticky.membership.flow import Flow, Prepare, Surroundings
from celery_sticky.ownership.events import (
    BeatDone,
    Event,
    Read,
    ReadDone,
    SendBeat,
    StoreEffect,
    StoreFailed,
    Swap,
    SwapDone,
)
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.base import Store
from celery_sticky.stores.flow import Watch, ask

logger = logging.getLogger("celery_sticky.member")

UNTOLD = "Workers that join from now on do not know which tasks were revoked here"
VERBS: dict[type[StoreEffect], str] = {Read: "read", SendBeat: "heartbeat", Swap: "swap"}


class StoreRequests:
    """The requests of one worker's member of one keyspace."""

    def __init__(self, here: Surroundings, worker: str, meaning: Callable[[float], str]) -> None:
        """`meaning` describes the effect of an outage."""
        self._here, self._worker = here, worker
        self._outage = Outage(logger, f"keyspace {here.keyspace}", meaning)
        self._untold = Outage(logger, f"revokes of keyspace {here.keyspace}", lambda _: UNTOLD)
        self._answered_at: float | None = None
        """When the store last answered, if it has not failed since."""

    def ask(self, effect: StoreEffect, joins: str) -> Flow[Event]:
        """Ask the store; `joins` is the incarnation that becomes a member by it, or empty."""
        sent = self._here.clock()
        try:
            answer = yield from self._ask(effect, joins, sent)
        except StickyError as error:  # a document that cannot be read is as bad as none
            self.failed(error)
            self._measure(effect, sent, answered=False)
            return StoreFailed(sent)
        self._answered_at = self._here.clock()
        self._measure(effect, sent, answered=True)
        return answer

    def watch(self, seconds: float) -> Flow[Iterable[Event]]:
        """Return signals of the store; wait at most so long for them."""
        # After an outage do not wait: it is over only when the store has answered and can be listened to.
        back = self._outage.lasts and self._answered_at is not None
        heard: Iterable[Event] = yield Watch(0.0 if back else seconds)
        if self._answered_at is not None:
            self._outage.over(self._answered_at)
        return heard

    @property
    def silent(self) -> bool:
        """True if the store has not answered since it failed."""
        return self._outage.lasts and self._answered_at is None

    def failed(self, error: StickyError) -> None:
        """Note that the store has not answered, or not with anything usable."""
        self._answered_at = None
        self._outage.failed(error, self._here.clock())

    def _ask(self, effect: StoreEffect, joins: str, sent: float) -> Flow[Event]:
        match effect:
            case Read():
                reading = yield from ask(Store.read)
                return ReadDone(reading.view, dict(reading.heartbeats), reading.store_id, reading.clock)
            case SendBeat(incarnation, announce):
                return (yield from self._heartbeat(incarnation, announce, sent))
            case Swap(old, new, guard, until):
                if joins:
                    yield from self._prepare(joins)
                sent = self._here.clock()
                done = yield from ask(Store.swap, old, new, guard, until)
                return SwapDone(sent, new, done)

    def _heartbeat(self, incarnation: str, announce: bool, sent: float) -> Flow[BeatDone]:
        done = yield from ask(Store.heartbeat, incarnation, announce=announce)
        if self._here.observer is not None and done.alive:
            self._here.observer.heartbeat_done(incarnation, done.counter)
        yield from self._share_revokes()
        return BeatDone(sent, done.alive, done.version, done.generation, done.store_id, done.heartbeats, done.counter)

    def _prepare(self, incarnation: str) -> Flow[None]:
        yield Prepare(incarnation)
        try:
            revoked = yield from ask(Store.revoked)  # before slots arrive
        except RecordUnusable as error:  # all keyspaces share this key: it must not keep workers from joining any
            keyspace = self._here.keyspace
            logger.error("keyspace %s: joining without knowing which tasks were revoked: %s", keyspace, error)
        else:
            self._here.hooks.learn_revokes(revoked)

    def _share_revokes(self) -> Flow[None]:
        here = self._here
        if not (fresh := here.hooks.fresh_revokes()):
            return
        try:
            yield from ask(Store.revoke, fresh, ttl=here.revoke_ttl, limit=here.revoke_limit)
        except StoreUnavailable as error:
            # The heartbeat before this was counted: an error here must not cost the lease.
            self._untold.failed(error, here.clock())
        else:
            here.hooks.revokes_told(fresh)
            self._untold.over(here.clock())

    def _measure(self, effect: StoreEffect, sent: float, *, answered: bool) -> None:
        here = self._here
        if here.instruments.wants(StoreAsked):
            seconds = here.clock() - sent
            here.instruments.tell(StoreAsked(self._worker, here.keyspace, VERBS[type(effect)], seconds, answered))
