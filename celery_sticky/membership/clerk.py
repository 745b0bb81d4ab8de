"""The clerk of a member: asks the store what the machine wants asked, and brings the answers as events.

It knows what has to be done before others can see a new membership, and says what of outages is to be said. Used by the
member's thread alone, but for `wake`.
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

UNTOLD = "Workers that join from now on do not know what was revoked here"


class Revokes(Protocol):
    """The revoked tasks of a worker, as the others are to know them."""

    def fresh_revokes(self) -> Collection[str]:
        """Return ids revoked here that the others have not been told of."""

    def revokes_told(self, task_ids: Collection[str]) -> None:
        """The store has taken these: they need not be told again."""

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """These ids were revoked before this worker joined."""


class Clerk:
    """Speaks to one store."""

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
        """`before_join` is called with a new incarnation; `meaning` tells what it means that the store is away."""
        self._keyspace, self._open_store, self._revokes = keyspace, open_store, revokes
        self._before_join = before_join
        self._revoke_ttl, self._revoke_limit = revoke_ttl, revoke_limit
        self._store: Store | None = None
        self._outage = Outage(logger, f"keyspace {keyspace}", meaning)
        self._untold = Outage(logger, f"revokes of keyspace {keyspace}", lambda _: UNTOLD)
        self._answered_at: float | None = None
        """When the store last answered, if it has not failed to since."""

    def connect(self) -> None:
        """Connect, the first time; what others do from our first look on is heard.

        Raises:
            StoreUnavailable: likewise below; tell `failed`.
        """
        if self._store is None:
            self._store = self._open_store()
            self._store.watch(0.0)  # subscribes

    def watch(self, timeout: float) -> Sequence[Event]:
        """Wait at most so long for signals; return them."""
        if self._store is None:
            raise StoreUnavailable("not connected yet")
        # After an outage: at once, for it is not over before the store has answered and can be listened to.
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
        """The store has not answered, or not what can be used."""
        self._answered_at = None
        self._outage.failed(error, boottime())

    def ask(self, effect: Read | SendBeat | Swap, joins: str) -> Event:
        """Ask the store; `joins`: the incarnation that becomes a member by this, if one does."""
        sent = boottime()
        try:
            if self._store is None:
                raise StoreUnavailable("not connected yet")
            answer = self._say(self._store, effect, joins, sent)
            self._answered_at = boottime()
            return answer
        except StickyError as error:  # a document that cannot be read is no better than none
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
            StoreUnavailable: it cannot be told now: do not join yet.
        """
        try:
            revoked = store.revoked()
        except RecordUnusable as error:  # one key for all keyspaces: it must not keep workers from every one of them
            logger.error("keyspace %s: joining without knowing what was revoked: %s", self._keyspace, error)
        else:
            self._revokes.learn_revokes(revoked)

    def _share_revokes(self, store: Store) -> None:
        if not (fresh := self._revokes.fresh_revokes()):
            return
        try:
            store.revoke(fresh, ttl=self._revoke_ttl, limit=self._revoke_limit)
        except StoreUnavailable as error:
            # The heartbeat before it was counted: what is refused here must not cost the lease.
            self._untold.failed(error, boottime())
        else:
            self._revokes.revokes_told(fresh)
            self._untold.over(boottime())
