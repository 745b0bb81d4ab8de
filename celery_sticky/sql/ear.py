"""The ear of a process: one connection and one thread that hear the rings for everything in the process that waits.

LISTEN may be accepted where nothing is ever heard: a pooler in transaction mode gives the session to somebody else. So
the ear first rings over another connection. It is proven when it hears that, and again whenever it hears itself, every
`CHECK_SECONDS`. While it is not proven, those who wait look into the database at short intervals. Also while it is,
they look from time to time, because a sender may die between its commit and its ring.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Hashable
from contextlib import closing
from typing import NamedTuple

from celery_sticky.platform.native import Section, start_native_thread
from celery_sticky.sql.address import Address
from celery_sticky.sql.bell import Ring, Topic, payloads, read
from celery_sticky.sql.database import Database
from celery_sticky.sql.dialects.base import Listener
from celery_sticky.waker import Waker

logger = logging.getLogger("celery_sticky")

PROOF_SECONDS = 3.0
"""Seconds within which the ear must hear the first ring."""
CHECK_SECONDS = 10.0
"""Seconds between two rings of the ear itself."""
RETRY_FIRST, RETRY_LAST = 0.5, 30.0
"""Seconds until a lost connection is made again: the first pause and the longest."""
UNHEARD_PAUSE = 60.0
"""Seconds until it is tried again where nothing was heard."""


class Unheard(Exception):
    """The ear has not heard its own ring."""


class Heard(NamedTuple):
    """What an ear has heard."""

    everything: bool
    """Anything may have changed: the ear was deaf for a while, or has just begun to hear."""
    topics: Collection[Topic]

    def __bool__(self) -> bool:
        return self.everything or bool(self.topics)


class Hearing:
    """What one part of a process wants to hear. Its methods are for one thread; `wake` is called in any."""

    def __init__(self, ear: Ear | None, wake: Callable[[], None], wants: Callable[[Ring, Topic], bool]) -> None:
        self._ear, self._wake, self._wants = ear, wake, wants
        self._section = Section()
        self._topics: set[Topic] = set()
        self._everything = True

    @property
    def proven(self) -> bool:
        """Whether every ring is heard now."""
        return self._ear is not None and self._ear.proven

    def take(self) -> Heard:
        """Return what was heard since the last call. The first time, it is everything."""
        with self._section:
            heard = Heard(self._everything, self._topics)
            self._everything, self._topics = False, set()
        return heard

    def hear(self, ring: Ring | None) -> None:
        """Note a ring; None: something may have been missed. It wakes, unless something else waits to be taken."""
        topics = () if ring is None else [topic for topic in ring.topics if self._wants(ring, topic)]
        if ring is not None and not topics:
            return
        with self._section:
            wakes = not self._everything and not self._topics
            self._everything = self._everything or ring is None
            self._topics.update(topics)
        if wakes or ring is None:
            self._wake()

    def close(self) -> None:
        """Hear no more. May be called twice."""
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.remove(self)


class Ear:
    """One connection that listens, and its thread, from the first hearing to the end of the last."""

    def __init__(self, key: Hashable, database: Database) -> None:
        self.proven = False
        self._key, self._dialect, self._timeout = key, database.dialect, database.timeout
        self._bell, self._where = database.address, database.notify.listen or database.address
        self._channel, self._name = database.tables.prefix, secrets.token_hex(4)
        self._hearings: list[Hearing] = []
        self._waker, self._over = Waker(), False
        self._told = False
        """Whether the log says that it does not hear."""
        self._own = False
        """Whether it has heard its own ring."""

    def add(self, hearing: Hearing) -> None:
        """Let somebody hear."""
        self._hearings = [*self._hearings, hearing]
        if len(self._hearings) == 1:
            start_native_thread(self._run)

    def remove(self, hearing: Hearing) -> None:
        """Stop telling somebody; the last one ends the thread."""
        with _guard:
            self._hearings = [one for one in self._hearings if one is not hearing]
            if not self._hearings:
                self.proven, self._over = False, True
                if _ears.get(self._key) is self:  # in a child of a fork it is not
                    del _ears[self._key]
        self._waker.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        pause = RETRY_FIRST
        while not self._over:
            try:
                with closing(self._connect()) as line:
                    self._prove(line)
                    pause = RETRY_FIRST
                    self._listen(line)
            except Unheard as error:
                pause = UNHEARD_PAUSE
                self._is_deaf(error)
            except self._dialect.errors as error:
                self._is_deaf(error)
            except Exception:
                logger.exception("%s: unexpected error while listening", self._where.shown)
                self._is_deaf(None)
            self._rest(pause)
            pause = min(2 * pause, RETRY_LAST)
        self._waker.close()

    def _connect(self) -> Listener:
        listener = self._dialect.listener(self._where, self._timeout, self._channel)
        assert listener is not None, "without a bell there is no ear"
        return listener

    def _prove(self, line: Listener) -> None:
        self._own = False
        # Over another connection: a pooler might pass on a ring in answer to the one who rings, and no other.
        with closing(self._dialect.connect(self._bell, self._timeout)) as other:
            other.run_and_ring("SELECT 1", (), [(self._channel, self._ring())])
        deadline = time.monotonic() + PROOF_SECONDS
        while not self._own and not self._over:
            if (left := deadline - time.monotonic()) <= 0:
                raise Unheard(
                    f"{self._where.shown}: LISTEN is accepted, but nothing is heard, perhaps because a pooler in "
                    "transaction mode stands before the server or this is another database; set the transport option "
                    "listen_url to the server itself"
                )
            self._hear(line, left)
        self.proven = not self._over
        if self._told:
            self._told = False
            logger.info("%s: notifications arrive again", self._where.shown)
        self._tell(None)

    def _listen(self, line: Listener) -> None:
        check_at = time.monotonic() + CHECK_SECONDS
        while not self._over:
            self._hear(line, check_at - time.monotonic())
            if time.monotonic() >= check_at:
                self._own = False
                line.ring(self._ring())
                self._hear(line, 0.0)
                if not self._own:
                    raise Unheard(f"{self._where.shown}: notifications do not arrive any more")
                check_at = time.monotonic() + CHECK_SECONDS

    def _hear(self, line: Listener, timeout: float) -> None:
        self._waker.wait(timeout, line)
        for payload in line.heard():
            ring = read(payload)
            self._own = self._own or ring.ringer == self._name
            self._tell(ring)

    def _tell(self, ring: Ring | None) -> None:
        for hearing in self._hearings:
            hearing.hear(ring)

    def _is_deaf(self, error: Exception | None) -> None:
        self.proven = False
        if error is not None and not self._told and not self._over:
            text = " ".join(str(error).split())
            logger.warning("%s. Until notifications arrive, this process looks for changes at short intervals", text)
        self._told = True
        self._tell(None)

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._waker.wait(left, None)

    def _ring(self) -> str:
        return next(payloads(Ring(self._name, ())))


_ears: dict[Hashable, Ear] = {}
_inherited: list[Ear] = []
"""Ears of a parent process. They stay referenced, so that no destructor says goodbye to the server for them."""
_guard = Section()


def hear(
    database: Database, wake: Callable[[], None], wants: Callable[[Ring, Topic], bool] = lambda ring, topic: True
) -> Hearing:
    """Hear the rings at a database until the hearing is closed.

    `wake` is called when there is something to take, in the thread of the ear; `wants` chooses the topics there.
    """
    if database.dialect.name != "postgresql" or not database.notify.rings:
        return Hearing(None, wake, wants)
    key = (_key(database.address), _key(database.notify.listen or database.address), database.tables.prefix)
    with _guard:
        ear = _ears.get(key) or _ears.setdefault(key, Ear(key, database))
        hearing = Hearing(ear, wake, wants)
        ear.add(hearing)
    return hearing


def _key(address: Address) -> Hashable:
    return (*(address.host, address.port, address.user, address.database), tuple(sorted(address.options.items())))


def _in_child() -> None:
    global _guard
    for one in _ears.values():
        one.proven = False  # its thread is the parent's
    _inherited.extend(_ears.values())
    _ears.clear()
    _guard = Section()


os.register_at_fork(after_in_child=_in_child)
