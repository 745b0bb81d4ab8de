"""The pump: the one thread of a connection that talks to the database for its consumers.

It claims messages and settles them in batches, reads broadcasts, and keeps the consumer's row alive. While the
database is away it tries again: what was settled meanwhile is kept, and Celery's loop notices nothing.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Database
from celery_sticky.sql.bell import BROADCAST, Topic, due_topic, queue_topic
from celery_sticky.sql.ear import Hearing, hear
from celery_sticky.transport.sql import deferred, queues
from celery_sticky.transport.sql.broadcasts import Reader, prune
from celery_sticky.transport.sql.claims import BATCH, Claimed, Claims, Evicted, Want
from celery_sticky.transport.sql.consumers import Consumers
from celery_sticky.transport.sql.envelope import decode
from celery_sticky.transport.sql.held import COMPANY, Ledger, Settled
from celery_sticky.transport.sql.inbox import Delivery, Inbox
from celery_sticky.transport.sql.looks import Looks
from celery_sticky.transport.sql.subscription import Subscription, broadcasts_for
from celery_sticky.waker import Waker

logger = logging.getLogger("celery_sticky")

LAST_WORD = 2.0
"""Seconds that a process at its end waits for the pump to give messages back."""
PRUNE_PAUSE = 10.0
"""Seconds between two looks for old broadcasts and expired queues."""
RETRY_PAUSE = 0.5
"""Seconds until a database that does not answer is asked again."""


class Pump:
    """Any thread may call its methods; it starts with the first subscription."""

    def __init__(
        self, database: Database, inbox: Inbox, on_beat: Callable[[], None], *, eviction_timeout: float
    ) -> None:
        """`on_beat` is called with each heartbeat."""
        self._database, self._inbox, self._on_beat = database, inbox, on_beat
        self._consumers = Consumers(database, eviction_timeout)
        self._reader = Reader(database)
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._subscriptions: dict[str, Subscription] = {}
        self._limits: dict[int, int] = {}
        self._waker, self._stopping = Waker(), False
        self._hearing: Hearing | None = None
        self._topics: set[Topic] = {BROADCAST}
        """What is rung for the queues that were ever consumed from."""
        self._thread: threading.Thread | None = None
        self._claims: Claims | None = None
        self._looks, self._away = Looks(), False
        self._next_beat = self._next_prune = 0.0
        self._hungry = True
        """There may be more messages than the last trip brought."""
        self._full = False
        """The last trip filled the room of a channel."""
        self._version: int | None = None
        """The database's version when there was nothing to bring."""
        self._turns = 0

    # -- for any thread ------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Consume from a queue."""
        with self._lock:
            self._topics |= {queue_topic(subscription.number), due_topic(subscription.number)}
            self._subscriptions[subscription.queue] = subscription
            self._limits.setdefault(subscription.channel, 0)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sticky-pump", daemon=True)
                self._thread.start()
                atexit.register(self.stop, LAST_WORD)
        self._look_now()

    def unsubscribe(self, queue: str) -> None:
        """Consume from a queue no more. What was claimed from it stays claimed."""
        with self._lock:
            self._subscriptions.pop(queue, None)

    def limit(self, channel: int, count: int) -> None:
        """Claim at most so many messages for a channel that it has not settled; 0: there is no limit."""
        with self._lock:
            grows = count == 0 or count > self._limits.get(channel, 0)
            self._limits[channel] = count
        if grows:
            self._look_now()

    def settle(self, tag: str, *, back: bool) -> None:
        """Delete a message, or give it back to its queue."""
        self._ledger.settled.append(Settled(tag, back))
        self._waker.wake()

    def release(self, channel: int) -> None:
        """Give back everything that a channel has not settled."""
        self._ledger.released.append(channel)
        self._waker.wake()

    def end(self, channel: int) -> None:
        """Forget the limit of a channel that is closed; its number may be used again."""
        with self._lock:
            self._limits.pop(channel, None)

    def stop(self, timeout: float) -> None:
        """Settle what is settled, give back the rest, and end."""
        atexit.unregister(self.stop)
        self._stopping = True
        self._waker.wake()
        if self._thread is None:
            self._waker.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def abandon(self) -> None:
        """Forget the connection: it belongs to the process that this one was forked from."""
        self._database.close()
        self._waker.close()

    def _look_now(self) -> None:
        self._hungry, self._version = True, None
        self._waker.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._hearing = hear(self._database, self._waker.wake, lambda ring, topic: topic in self._topics)
            while not self._stopping:
                try:
                    self._waker.wait(self._turn(), None)
                except BrokerUnavailable as error:
                    self._is_away(error)
            self._end()
        except Exception as error:
            logger.critical("the thread that reads the broker has failed", exc_info=True)
            self._inbox.fail(BrokerUnavailable(f"the thread that reads the broker has failed: {error!r}"))
        finally:
            if self._hearing is not None:
                self._hearing.close()
            self._database.close()
            self._waker.close()

    def _is_away(self, error: BrokerUnavailable) -> None:
        if not self._away:
            logger.warning("%s; trying again until it answers, and keeping all messages until then", error)
        self._away, self._hungry, self._version = True, True, None
        deadline = time.monotonic() + RETRY_PAUSE
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._waker.wait(left, None)

    def _turn(self) -> float:
        """Do what there is to do now; return the seconds until the next turn."""
        with self._lock:
            subscriptions, limits = list(self._subscriptions.values()), dict(self._limits)
        claiming = [one for one in subscriptions if one.claims]
        if claiming and self._claims is None:
            self._claims = Claims(self._database, self._consumers.register())
        if self._hearing is not None:
            self._looks.take_in(self._hearing.take(), proven=self._hearing.proven)
        self._beat(subscriptions)
        self._put_back_due([one.number for one in claiming])
        self._ledger.take()
        rooms = self._ledger.rooms((one.channel, 0 if one.no_ack else limits.get(one.channel, 0)) for one in claiming)
        open_to = {one.number: one for one in claiming if rooms[one.channel] > 0}
        self._look(open_to, subscriptions)
        company = max(min(filter(None, limits.values()), default=2) // 2, 1) if self._full else COMPANY
        if (self._hungry and open_to) or self._ledger.wait(company) == 0.0:
            self._trip(open_to, rooms)
        if self._away:
            logger.warning("the broker answers again")
            self._away = False
        if self._hungry and any(rooms.values()):
            return 0.0
        settles = self._ledger.wait(company)
        rest = min(self._looks.next_at, self._next_beat) - time.monotonic()
        return max(rest if settles is None else min(rest, settles), 0.0)

    def _look(self, open_to: dict[int, Subscription], subscriptions: Sequence[Subscription]) -> None:
        """Look for broadcasts, and for messages that nobody has claimed, if it is time for it."""
        now = time.monotonic()
        messages, broadcasts = now >= self._looks.messages_at, now >= self._looks.broadcasts_at
        if not messages and not broadcasts:
            return
        version = self._database.version()
        brought = False
        if version is None or version != self._version:
            brought = broadcasts and self._hear(subscriptions)
            if messages and not self._hungry and open_to and self._claims is not None:
                self._hungry = bool(self._claims.look(open_to))
            self._version = None if self._hungry else version
        self._looks.looked(now, found=brought or self._hungry)

    def _hear(self, subscriptions: Sequence[Subscription]) -> bool:
        """Hand broadcasts over to those who listen; return whether there were any."""
        heard = broadcasts_for(subscriptions, self._reader)
        if heard:
            self._inbox.put(heard)
        return bool(heard)

    def _trip(self, open_to: dict[int, Subscription], rooms: dict[int, int]) -> None:
        """Settle what is settled, and claim what there is room for."""
        claims = self._claims
        if claims is None:
            return
        acked, returned = set(self._ledger.acked), set(self._ledger.returned)
        self._turns += 1
        order = sorted(open_to)
        shift = self._turns % len(order) if order else 0
        wants = [Want(number, open_to[number].channel) for number in order[shift:] + order[:shift]]
        try:
            found = claims.trip(acked, returned, wants, rooms)
        except Evicted:
            self._is_evicted()
            return
        self._ledger.told(acked, returned)
        self._full = any(not room for room in rooms.values())
        self._hungry = bool(returned) or len(found) >= BATCH
        if found:
            self._looks.brought()
            self._version = None
            self._hand_over(found, open_to)

    def _hand_over(self, found: Sequence[Claimed], open_to: dict[int, Subscription]) -> None:
        deliveries: list[Delivery] = []
        for claimed in found:
            subscription = open_to[claimed.place[0]]
            payload = decode(claimed.body)
            if payload is None:
                logger.error(
                    "message %d of queue %r is not one that Kombu writes; it stays in the queue, and is skipped while "
                    "this consumer lives: delete the row (queue %d, priority %d, id %d)",
                    *(claimed.place[2], subscription.queue, *claimed.place),
                )
                continue
            if subscription.no_ack:
                tag = None
                self._ledger.ack(claimed.place)
            else:
                tag = self._ledger.add(claimed.place, subscription.channel)
            deliveries.append(Delivery(subscription.queue, payload, tag))
        self._inbox.put(deliveries)

    # -- the consumer's row --------------------------------------------------------------------

    def _beat(self, subscriptions: Sequence[Subscription]) -> None:
        """Keep the row and temporary queues alive, and look for consumers that are dead."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + self._consumers.interval
        self._on_beat()
        if self._claims is not None:
            if not self._consumers.beat(self._claims.consumer):
                self._is_evicted()
            elif self._consumers.watch(self._claims.consumer):
                self._look_now()
        if temporary := [one.queue for one in subscriptions if one.temporary]:
            queues.keep(self._database, temporary, 2 * self._consumers.interval)
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_PAUSE
            prune(self._database)
            queues.expire(self._database)

    def _put_back_due(self, queues: Sequence[int]) -> None:
        if time.monotonic() < self._looks.etas_at:
            return
        due_in = deferred.due_in(self._database, queues)
        if due_in <= 0 and deferred.put_back(self._database, queues):
            self._look_now()
        self._looks.looked_at_etas(time.monotonic(), due_in)

    def _is_evicted(self) -> None:
        lost = self._ledger.forget()
        self._claims, self._hungry = None, True
        logger.warning(
            "other consumers took this one for dead, and get the %d messages that it held: they run again, also where "
            "they run here already",
            lost,
        )

    def _end(self) -> None:
        """Settle what is settled; the rest goes back with the consumer's row."""
        self._ledger.take()
        if self._claims is None:
            return
        try:
            with suppress(Evicted):
                self._claims.trip(self._ledger.acked, (), (), {})
            self._consumers.leave(self._claims.consumer)
        except BrokerUnavailable as error:
            logger.warning("%s; what this consumer held goes back to its queues when others take it for dead", error)
