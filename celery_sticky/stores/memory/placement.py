"""The placement store in this process: the reference implementation. It shares the records of `MemoryServer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_sticky.errors import NotAMember
from celery_sticky.ownership.events import ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.stores.in_process import Client
from celery_sticky.stores.memory.store import Heard, PlacementRecords, Records, parsed
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


class MemoryPlacementStore(Client[Records, Heard]):
    """A client of a `MemoryServer`, for one keyspace: see `celery_sticky.stores.placement.PlacementStore`."""

    def watch(self, timeout: float) -> Sequence[ViewChanged | PinMoved]:
        """See `PlacementStore.watch`. Heartbeats are not returned, but may end the wait."""
        return [signal for signal in super().watch(timeout) if isinstance(signal, ViewChanged | PinMoved)]

    def look(self, known: Version, keys: Collection[str]) -> Look:
        """See `PlacementStore.look`."""
        with self._server.changed:
            changed, view = self._compared(known)
            pins = {key: pin for key in keys if (pin := self._pin(key))}
            return Look(changed, view, pins)

    def claim(self, incarnation: str, call: int, known: Version, wishes: Sequence[Wish], heartbeats: int = 0) -> Claims:
        """See `PlacementStore.claim`."""
        with self._server.changed:
            if self._may_act(incarnation) and self._records().heartbeats[self._keyspace][incarnation] < heartbeats:
                self._records().documents.pop(self._keyspace, None)
            if not self._may_act(incarnation) or not self._in_turn(incarnation, call):
                return Claims(member=False)
            changed, view = self._compared(known)
            if changed:
                return Claims(member=True, changed=True, view=view)
            return Claims(member=True, answers={wish.key: self._answer(incarnation, wish) for wish in wishes})

    def _answer(self, incarnation: str, wish: Wish) -> Answer:
        book = self._book()
        if (pin := self._pin(wish.key)) != wish.pin:
            return Answer(Said.PINNED, by=pin)
        if not wish.run:
            return Answer(Said.RIGHT)
        holder = self._holder(wish.key)
        if holder != incarnation and self._lives(holder):
            return Answer(Said.HELD, by=holder)
        token = self._next_token()
        book.claims[wish.key] = (token, incarnation)
        return Answer(Said.GRANTED, token=token)

    def release(self, incarnation: str, call: int, keys: Collection[str]) -> None:
        """See `PlacementStore.release`."""
        with self._server.changed:
            claims = self._book().claims
            if self._in_turn(incarnation, call):
                for key in keys:
                    if claims.get(key, (0, ""))[1] == incarnation:
                        del claims[key]

    def holder(self, key: str) -> str:
        """See `PlacementStore.holder`."""
        with self._server.changed:
            holder = self._holder(key)
            return holder if self._lives(holder) else ""

    def pin(self, worker: str, key: str, *, take: bool) -> Pinned:
        """See `PlacementStore.pin`."""
        with self._server.changed:
            book = self._book()
            incarnation = book.enlisted.get(worker, "")
            if not self._may_act(incarnation):
                raise NotAMember(f"worker {worker!r} is not a live member of keyspace {self._keyspace!r} now")
            pinned = self._pin(key)
            if pinned and pinned != incarnation and not take:
                return Pinned(by=book.pins[key][1])
            former, other, token = book.pins.get(key, (incarnation, worker, 0))
            if other != worker:
                book.lost.setdefault(former, {})[key] = token
            book.lost.get(incarnation, {}).pop(key, None)
            made = Pinned(self._next_token(), incarnation)
            book.pins[key] = (incarnation, worker, made.token)
            if pinned != incarnation:
                self._tell(key, {pinned, self._holder(key)})
            return made

    def unpin(self, worker: str, key: str, pinned: Pinned | None = None) -> bool:
        """See `PlacementStore.unpin`."""
        with self._server.changed:
            book = self._book()
            incarnation = book.enlisted.get(worker, "") if pinned is None else pinned.incarnation
            lost = book.lost.get(incarnation, {})
            if pinned is None or lost.get(key) == pinned.token:
                lost.pop(key, None)
            by, _, token = book.pins.get(key, ("", "", 0))
            mine = bool(by) and by == incarnation and (pinned is None or token == pinned.token)
            if mine:
                del book.pins[key]
                self._tell(key, {self._holder(key)})
            return mine

    def revoke(self, key: str, token: int | None = None) -> str:
        """See `PlacementStore.revoke`."""
        with self._server.changed:
            book = self._book()
            incarnation, worker, current = book.pins.get(key, ("", "", 0))
            if not self._lives(incarnation) or token not in (None, current):
                return ""
            del book.pins[key]
            book.lost.setdefault(incarnation, {})[key] = current
            self._tell(key, {incarnation, self._holder(key)})
            return worker

    def pins(self, start: str = START) -> tuple[str, Sequence[PinRecord]]:
        """See `PlacementStore.pins`. One call returns all."""
        with self._server.changed:
            now, pins = int(self._server.clock() * 1000), self._book().pins.items()
            living = [(key, pin) for key, pin in pins if self._lives(pin[0])]
            return START, [PinRecord.made(key, worker, by, token, now) for key, (by, worker, token) in living]

    def enlist(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.enlist`."""
        with self._server.changed:
            self._book().enlisted[worker] = incarnation

    def enlisted(self) -> Mapping[str, str]:
        """See `PlacementStore.enlisted`."""
        with self._server.changed:
            return dict(self._book().enlisted)

    def strike(self, worker: str, incarnation: str) -> None:
        """See `PlacementStore.strike`."""
        with self._server.changed:
            enlisted = self._book().enlisted
            if enlisted.get(worker) == incarnation:
                del enlisted[worker]

    def sweep(self, start: str = "0") -> str:
        """See `PlacementStore.sweep`. One call does everything."""
        with self._server.changed:
            book = self._book()
            book.claims = {key: claim for key, claim in book.claims.items() if self._lives(claim[1])}
            for key, (incarnation, _, token) in list(book.pins.items()):
                if not self._lives(incarnation):
                    del book.pins[key]
                    book.lost.setdefault(incarnation, {})[key] = token
            book.calls = {name: call for name, call in book.calls.items() if self._lives(name)}
            return "0"

    def lost(self, worker: str, incarnations: Collection[str]) -> Collection[str]:
        """See `PlacementStore.lost`."""
        with self._server.changed:
            book = self._book()
            keys = {key for incarnation in incarnations for key in book.lost.get(incarnation, ())}
            return {key for key in keys if not (self._pin(key) and book.pins[key][1] == worker)}

    def forget(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """See `PlacementStore.forget`."""
        with self._server.changed:
            for incarnation in incarnations:
                lost = self._book().lost.get(incarnation, {})
                for key in keys:
                    lost.pop(key, None)

    def _next_token(self) -> int:
        book = self._book()
        book.token = max(book.token + 1, int(self._server.clock() * 1000))
        return book.token

    def _holder(self, key: str) -> str:
        return self._book().claims.get(key, (0, ""))[1]

    def _tell(self, key: str, incarnations: Collection[str]) -> None:
        self._server.signal(self._keyspace, PinMoved(key, frozenset(filter(self._lives, incarnations))))

    def _book(self) -> PlacementRecords:
        return self._records().placement_stores.setdefault(self._keyspace, PlacementRecords())

    def _view(self) -> View | None:
        document = self._records().documents.get(self._keyspace)
        return None if document is None else parsed(document)

    def _compared(self, known: Version) -> tuple[bool, View | None]:
        view = self._view()
        version = (view.version, view.generation) if view is not None else NO_VERSION
        return (version != known, view if version != known else None)

    def _lives(self, incarnation: str) -> bool:
        return incarnation in self._records().heartbeats.get(self._keyspace, {})

    def _may_act(self, incarnation: str) -> bool:
        view = self._view()
        return self._lives(incarnation) and view is not None and view.store_id == self._server.run_id

    def _in_turn(self, incarnation: str, call: int) -> bool:
        calls = self._book().calls
        in_turn = call > calls.get(incarnation, 0)
        if in_turn:
            calls[incarnation] = call
        return in_turn

    def _pin(self, key: str) -> str:
        incarnation = self._book().pins.get(key, ("", "", 0))[0]
        return incarnation if self._lives(incarnation) else ""
