"""The claims and pins of a placed keyspace in a SQL database: every change locks the row of the view first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from celery_sticky.errors import NotAMember
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.sql import Database
from celery_sticky.sql.bell import DOCUMENT, PINS, keyspace_topic
from celery_sticky.sql.text import marks
from celery_sticky.stores.placement import (
    NO_VERSION,
    START,
    Answer,
    Claims,
    Look,
    PinMoved,
    Pinned,
    PinRecord,
    Said,
    Version,
    Wish,
)
from celery_sticky.stores.sql.placement.book import Book, Pin, names
from celery_sticky.stores.sql.placement.pages import Pages
from celery_sticky.stores.sql.placement.signals import PlacementSignals
from celery_sticky.stores.sql.poller import Poller
from celery_sticky.stores.sql.snapshot import Snapshots, parsed

NOBODY = Pin("", "", 0)
LIVES = "JOIN {heartbeat} h ON h.scope = r.scope AND h.incarnation = r.incarnation"


class SqlPlacementStore:
    """See `celery_sticky.stores.placement.PlacementStore`.

    `database` is its own, unless stores share a `poller` too.
    """

    def __init__(self, database: Database, keyspace: str, *, prefix: str, poller: Poller | None = None) -> None:
        self._database, self._keyspace = database, keyspace
        self._scope = f"{prefix}.{keyspace}".encode()
        self._snapshots = Snapshots(database.dialect, self._scope)
        self._pages = Pages(database, self._scope, self._locked)
        self._signals = PlacementSignals(database, self._scope)
        self._poller = poller or Poller(database)

    def look(self, known: Version, keys: Collection[str]) -> Look:
        """See `PlacementStore.look`."""
        wanted = names(keys)
        statement = (
            "SELECT 'view' AS kind, CASE WHEN version = %s AND generation = %s THEN scope ELSE document END AS name, "
            "version AS number, generation AS other, scope AS pinned FROM {view} WHERE scope = %s"
        )
        said = [*known, self._scope]
        if wanted:
            statement += (
                f" UNION ALL SELECT 'pin', r.task_key, 0, 0, r.incarnation FROM {{pin}} r {LIVES} "
                f"WHERE r.scope = %s AND r.task_key IN {marks(len(wanted))}"
            )
            said += [self._scope, *wanted]
        version, document, pins = NO_VERSION, b"", dict[str, str]()
        for kind, name, number, other, pinned in self._database.rows(statement, said):
            if kind == "view":
                version, document = (number, other), bytes(name)
            else:
                pins[bytes(name).decode()] = bytes(pinned).decode()
        changed = version != known
        return Look(changed, self._view(version, document) if changed else None, pins)

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """See `PlacementStore.claim`."""
        with self._locked() as book:
            if book.may_act(incarnation) and book.found.counters[incarnation] < heartbeats:
                book.remove_document()
                return Claims(member=False)
            if not book.may_act(incarnation) or not book.in_turn(incarnation, call):
                return Claims(member=False)
            if book.found.version == known:
                return Claims(member=True, answers=_answers(book, incarnation, wishes))
        look = self.look(known, [])
        return Claims(member=True, changed=True, view=look.view)

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        """See `PlacementStore.release`."""
        with self._locked() as book:
            if book.in_turn(incarnation, call):
                book.release(incarnation, keys)

    def holder(self, key: str) -> str:
        """See `PlacementStore.holder`."""
        statement = f"SELECT r.incarnation FROM {{key_claim}} r {LIVES} WHERE r.scope = %s AND r.task_key = %s"
        rows = self._database.rows(statement, [self._scope, key.encode()])
        return bytes(rows[0][0]).decode() if rows else ""

    def pin(self, worker: str, key: str, *, take: bool) -> Pinned:
        """See `PlacementStore.pin`."""
        with self._locked() as book:
            incarnation = book.enlisted(worker)
            if not book.may_act(incarnation):
                raise NotAMember(f"worker {worker!r} is not a live member of keyspace {self._keyspace!r} now")
            former = book.pins([key]).get(key, Pin(incarnation, worker, 0))
            pinned = former.incarnation if former.token and book.lives(former.incarnation) else ""
            if pinned and pinned != incarnation and not take:
                return Pinned(by=former.worker)
            if former.worker != worker:
                book.lose(key, former)
            book.drop_lost(key, incarnation)
            made = Pinned(book.tokens(1)[0], incarnation)
            book.set_pin(key, Pin(incarnation, worker, made.token))
            if pinned != incarnation:
                book.tell(key, {pinned, *book.holders([key]).values()}, made.token)
            return made

    def unpin(self, worker: str, key: str, pinned: Pinned | None = None) -> bool:
        """See `PlacementStore.unpin`."""
        with self._locked() as book:
            incarnation = book.enlisted(worker) if pinned is None else pinned.incarnation
            book.drop_lost(key, incarnation, None if pinned is None else pinned.token)
            now = book.pins([key]).get(key, NOBODY)
            mine = now.incarnation == incarnation and (pinned is None or now.token == pinned.token) and bool(now.token)
            if mine:
                book.delete_pin(key)
                book.tell(key, book.holders([key]).values())
            return mine

    def revoke(self, key: str, token: int | None = None) -> str:
        """See `PlacementStore.revoke`."""
        with self._locked() as book:
            now = book.pins([key]).get(key, NOBODY)
            if not book.lives(now.incarnation) or token not in (None, now.token):
                return ""
            book.delete_pin(key)
            book.lose(key, now)
            book.tell(key, {now.incarnation, *book.holders([key]).values()})
            return now.worker

    def pins(self, start: str = START) -> tuple[str, Sequence[PinRecord]]:
        """See `PlacementStore.pins`."""
        return self._pages.pins(start)

    def enlist(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.enlist`."""
        end = self._database.dialect.upsert(["scope", "worker"], ["incarnation"])
        statement = f"INSERT INTO {{enlisted}} (scope, worker, incarnation) VALUES (%s, %s, %s){end}"
        self._database.run(statement, [self._scope, worker.encode(), incarnation.encode()])

    def enlisted(self) -> Mapping[str, str]:
        """See `PlacementStore.enlisted`."""
        rows = self._database.rows("SELECT worker, incarnation FROM {enlisted} WHERE scope = %s", [self._scope])
        return {bytes(worker).decode(): bytes(incarnation).decode() for worker, incarnation in rows}

    def strike(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.strike`."""
        statement = "DELETE FROM {enlisted} WHERE scope = %s AND worker = %s AND incarnation = %s"
        self._database.run(statement, [self._scope, worker.encode(), incarnation.encode()])

    def sweep(self, start: str = START) -> str:
        """See `PlacementStore.sweep`."""
        return self._pages.sweep(start)

    def lost(self, worker: str, incarnations: Collection[str]) -> Collection[str]:
        """See `PlacementStore.lost`."""
        wanted = names(incarnations)
        if not wanted:
            return frozenset()
        rows = self._database.rows(
            f"SELECT l.task_key FROM {{lost_pin}} l WHERE l.scope = %s AND l.incarnation IN {marks(len(wanted))} "
            f"AND l.expires > {self._database.dialect.clock} AND NOT EXISTS (SELECT 1 FROM {{pin}} r {LIVES} "
            "WHERE r.scope = l.scope AND r.task_key = l.task_key AND r.worker = %s)",
            [self._scope, *wanted, worker.encode()],
        )
        return {bytes(row[0]).decode() for row in rows}

    def forget(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """See `PlacementStore.forget`."""
        with self._locked() as book:
            book.forget_lost(incarnations, keys)

    def watch(self, timeout: float) -> Sequence[ViewChanged | PinMoved]:
        """See `PlacementStore.watch`."""
        topics = [keyspace_topic(kind, self._scope) for kind in (DOCUMENT, PINS)]
        return self._poller.watch(self, self._signals.look, topics, timeout)

    def wake(self) -> None:
        """See `PlacementStore.wake`."""
        self._poller.wake()

    def close(self) -> None:
        """See `PlacementStore.close`."""
        self._poller.close()
        self._database.close()

    @contextmanager
    def _locked(self) -> Iterator[Book]:
        """Begin a transaction that has the keyspace for itself."""
        with self._database.transaction() as inside:
            self._snapshots.lock(inside)
            yield Book(inside, self._database.dialect, self._scope, self._snapshots.read(inside))

    def _view(self, version: Version, document: bytes) -> View | None:
        return None if version == NO_VERSION else parsed(document, self._database.tables, self._scope)


def _answers(book: Book, incarnation: str, wishes: Sequence[Wish]) -> dict[str, Answer]:
    """Answer a member's wishes, and record its claims."""
    keys = [wish.key for wish in wishes]
    pins, holders = book.pins(keys), book.holders(keys)
    answers: dict[str, Answer] = {}
    granted: list[str] = []
    for wish in wishes:
        pin, holder = pins.get(wish.key, NOBODY).incarnation, holders.get(wish.key, "")
        pin = pin if book.lives(pin) else ""
        if pin != wish.pin:
            answers[wish.key] = Answer(Said.PINNED, by=pin)
        elif not wish.run:
            answers[wish.key] = Answer(Said.RIGHT)
        elif holder != incarnation and book.lives(holder):
            answers[wish.key] = Answer(Said.HELD, by=holder)
        else:
            granted.append(wish.key)
    if granted:
        tokens = dict(zip(granted, book.tokens(len(granted)), strict=True))
        book.claim(incarnation, tokens)
        answers |= {key: Answer(Said.GRANTED, token=token) for key, token in tokens.items()}
    return answers
