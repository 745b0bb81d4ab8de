"""The clerk of a member: sends the machine's requests to the store, and returns the answers as events.

It does what must happen before others can see a new membership, and logs outages. Only the member's thread uses it,
except for `wake`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from celery_sticky.errors import RecordUnusable, StickyError, StoreUnavailable
from celery_sticky.membership.lease import boottime
from celery_sticky.ownership.events import BeatDone, Event, Read, ReadDone, SendBeat, StoreFailed, Swap, SwapDone
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.base import Store

logger = logging.getLogger("celery_sticky.member")

UNTOLD = "Workers that join from now on do not know which tasks were revoked here"


class Revokes(Protocol):
    """The revoked tasks of a worker, as shared with the others."""

    def fresh_revokes(self) -> Collection[str]:
        """Return ids revoked here that the other workers do not know yet."""

    def revokes_told(self, task_ids: Collection[str]) -> None:
        """Note that the store has these ids: they need not be shared again."""

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """Note that these ids were revoked before this worker joined."""


class Clerk:
    """A member's client of one store."""

    def __init__(
        self,
        keyspace: str,
        open_store: Callable[[], Store],
        revokes: Revokes,
        before_join: Callable[[Store, str], None],
        meaning: Callable[[float], str],
        *,
        revoke_ttl: float,
        revoke_limit: int,
    ) -> None:
        """`before_join` is called with a new incarnation; `meaning` describes the effect of a store outage."""
        self._keyspace, self._open_store, self._revokes = keyspace, open_store, revokes
        self._before_join = before_join
        self._revoke_ttl, self._revoke_limit = revoke_ttl, revoke_limit
        self._store: Store | None = None
        self._outage = Outage(logger, f"keyspace {keyspace}", meaning)
        self._untold = Outage(logger, f"revokes of keyspace {keyspace}", lambda _: UNTOLD)
        self._answered_at: float | None = None
        """When the store last answered, if it has not failed since."""

    def connect(self) -> None:
        """Connect and subscribe, the first time: signals sent after our first read are then received.

        Raises:
            StoreUnavailable: the store does not answer; pass the error to `failed`. The same holds for `watch`.
        """
        if self._store is None:
            self._store = self._open_store()
            self._store.watch(0.0)  # subscribes

    def watch(self, timeout: float) -> Sequence[Event]:
        """Return signals; wait at most `timeout` seconds for them."""
        if self._store is None:
            raise StoreUnavailable("not connected yet")
        # After an outage do not wait: the outage ends only when the store has answered and can be listened to.
        back = self._outage.lasts and self._answered_at is not None
        heard = self._store.watch(0.0 if back else timeout)
        if self._answered_at is not None:
            self._outage.over(self._answered_at)
        return heard

    def wake(self) -> None:
        """Interrupt `watch`, or the next one. Any thread may call this."""
        if (store := self._store) is not None:
            store.wake()

    def close(self) -> None:
        """Disconnect."""
        if self._store is not None:
            self._store.close()

    def failed(self, error: StickyError) -> None:
        """Record that the store has not answered, or not with anything usable."""
        self._answered_at = None
        self._outage.failed(error, boottime())

    def ask(self, effect: Read | SendBeat | Swap, joins: str) -> Event:
        """Send a request to the store; `joins` is the incarnation that becomes a member by it, or empty."""
        sent = boottime()
        try:
            if self._store is None:
                raise StoreUnavailable("not connected yet")
            answer = self._say(self._store, effect, joins, sent)
            self._answered_at = boottime()
            return answer
        except StickyError as error:  # a document that cannot be read is as bad as none
            self.failed(error)
        return StoreFailed(sent)

    def _say(self, store: Store, effect: Read | SendBeat | Swap, joins: str, sent: float) -> Event:
        match effect:
            case Read():
                reading = store.read()
                return ReadDone(reading.view, dict(reading.heartbeats), reading.store_id, reading.clock)
            case SendBeat(incarnation, announce):
                heartbeat = store.heartbeat(incarnation, announce=announce)
                self._share_revokes(store)
                return BeatDone(
                    sent,
                    heartbeat.alive,
                    heartbeat.version,
                    heartbeat.generation,
                    heartbeat.store_id,
                    heartbeat.heartbeats,
                    heartbeat.counter,
                )
            case Swap(old, new, guard):
                if joins:
                    self._before_join(store, joins)
                sent = boottime()
                return SwapDone(sent, new, store.swap(old, new, guard))

    def learn_revokes(self, store: Store) -> None:
        """Learn what was revoked before this worker joined.

        Raises:
            StoreUnavailable: the store cannot tell now: do not join yet.
        """
        try:
            revoked = store.revoked()
        except RecordUnusable as error:  # all keyspaces share this key: it must not keep workers from joining any
            logger.error("keyspace %s: joining without knowing which tasks were revoked: %s", self._keyspace, error)
        else:
            self._revokes.learn_revokes(revoked)

    def _share_revokes(self, store: Store) -> None:
        if not (fresh := self._revokes.fresh_revokes()):
            return
        try:
            store.revoke(fresh, ttl=self._revoke_ttl, limit=self._revoke_limit)
        except StoreUnavailable as error:
            # The heartbeat before this was counted: an error here must not cost the lease.
            self._untold.failed(error, boottime())
        else:
            self._revokes.revokes_told(fresh)
            self._untold.over(boottime())
