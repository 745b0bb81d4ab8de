"""Which keys of placed keyspaces this worker has something to do with, and which of them it may run. Pure.

An entry of such a keyspace is let into the gate, and starts only when its key is claimed. While anything of a key is
left here, an entry or a job, the claim is kept; whether the key still belongs here is asked anew now and then. Whoever
shares this between threads holds the courier's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from celery_sticky.delivery.gate import Entry, Gate, Stage
from celery_sticky.keys import KeyId

HELD_FIRST, HELD_LAST = 0.05, 1.0
"""Seconds between two looks whether another worker has given a key back: a tenth of what it has been waited for."""
REVIEW = 1.0
"""Seconds after which it is looked whether a claimed key still belongs here."""
DUE = 0.0
"""When to ask of a key of which something has changed."""
UNSTARTED = (Stage.WAITING, Stage.READY, Stage.HANDED)


@dataclass(slots=True)
class Question:
    """A key that something is to be decided of."""

    key: str
    pin: str
    """Who has pinned it, as far as is known."""
    claimed: bool
    slots: Collection[int | str]
    """Where its messages came from that have not started."""
    job: bool = False
    """Whether a job waits for the claim."""


class Held(Enum):
    """How a key is held for its jobs."""

    NOT = 0
    WAITING = 1
    """They wait for the claim."""
    OPEN = 2
    """Their place is open here."""


@dataclass(slots=True)
class _Key:
    entries: dict[Entry, None] = field(default_factory=dict)
    """In the order in which they came."""
    pin: str = ""
    token: int = 0
    """0: it is not claimed."""
    asked: bool = False
    """It may be claimed: a request was sent."""
    elsewhere: bool = False
    """It is claimed, and belongs to another worker now, or may: what has started ends here, the rest goes, or waits."""
    ask_at: float = DUE
    held_since: float | None = None
    """Since when it is known that another worker has claimed it."""
    job: Held = Held.NOT
    """What of the key's jobs needs the claim."""

    @property
    def in_question(self) -> bool:
        """Whether nothing that is not next already may start before it was asked where the key belongs."""
        return self.elsewhere or self.ask_at == DUE


class KeyClaims:
    """The books of all placed keyspaces of a worker. `now` is in seconds on one clock."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._keys: dict[str, dict[str, _Key]] = {}
        """Those with entries, or with a job that waits."""
        self._quiet: dict[str, dict[str, _Key]] = {}
        """Those that are claimed for jobs alone: there may be very many, and nothing is to be decided of them here."""
        self._incarnations: dict[str, str] = {}
        self._mine: dict[str, str] = {}
        self._released: dict[str, dict[str, None]] = {}
        """Keys that may be ours and of which nothing is left here, in the order in which that came about."""

    def serve(self, keyspace: str, incarnation: str, mine: str) -> list[str]:
        """This is who we are in the keyspace now, and our worker queue: what was claimed as another one is void.

        Return the keys that were held for jobs.
        """
        self._incarnations[keyspace], self._mine[keyspace] = incarnation, mine
        self._released[keyspace] = {}
        keys = self._keys.setdefault(keyspace, {})
        keys |= self._quiet.pop(keyspace, {})
        held = [key for key, known in keys.items() if known.job is Held.OPEN]
        for known in keys.values():
            known.token, known.asked, known.elsewhere, known.ask_at = 0, False, False, DUE
            known.job = Held.NOT
            for entry in known.entries:
                entry.pending = True  # those that have started go on; should one start again, it needs the claim anew
        self._keys[keyspace] = {key: known for key, known in keys.items() if known.entries}
        return held

    def incarnation(self, keyspace: str) -> str:
        """Return who we are there."""
        return self._incarnations.get(keyspace, "")

    # -- entries -------------------------------------------------------------------------------

    def prepare(self, entry: Entry) -> None:
        """An entry is about to enter the gate, or to have another turn."""
        keyspace, key = _claim_of(entry)
        known = self._find(keyspace, key)
        entry.pending = known is None or not known.token or known.in_question or self._foreign(entry)
        if known is not None:
            entry.token = known.token

    def note(self, entry: Entry) -> None:
        """The entry is in the gate."""
        keyspace, key = _claim_of(entry)
        known = self._take(keyspace, key)
        known.entries[entry] = None
        if entry.pending:
            known.ask_at = DUE

    def take_in(self) -> None:
        """Strike out what is gone from the gate."""
        freed, self._gate.freed[:] = self._gate.freed[:], []
        for entry in freed:
            if entry.stage is not Stage.GONE and not entry.withdrawn:
                continue
            keyspace, key = _claim_of(entry)
            known = self._keys[keyspace].get(key)
            if known is None:
                continue
            known.entries.pop(entry, None)
            self._put_away(keyspace, key, known)

    def __len__(self) -> int:
        return sum(len(keys) for keys in self._keys.values())

    def claimed(self, keyspace: str) -> frozenset[str]:
        """Return the keys that are claimed as far as is known here, and of which a message runs or may yet start."""
        return frozenset(
            key
            for key, known in self._keys.get(keyspace, {}).items()
            if known.token and any(entry.stage not in (Stage.ENDED, Stage.GONE) for entry in known.entries)
        )

    # -- what to ask ---------------------------------------------------------------------------

    def questions(self, keyspace: str, now: float, most: int) -> list[Question]:
        """Return keys of which something is to be decided now."""
        self.take_in()
        found: list[Question] = []
        for key, known in self._keys.get(keyspace, {}).items():
            if len(found) == most:
                break
            if now < known.ask_at:
                continue
            slots = {entry.slot[1] for entry in known.entries if entry.stage in UNSTARTED}
            waiting = known.job is Held.WAITING
            if slots or waiting:
                found.append(Question(key, known.pin, bool(known.token), slots, waiting))
        return found

    def review(self, keyspace: str) -> None:
        """The members have changed: ask of every key again."""
        for keys in (self._keys, self._quiet):
            for known in keys.get(keyspace, {}).values():
                known.ask_at = DUE

    def doubt(self, keyspace: str, key: str) -> None:
        """The key's pin has changed: ask of it at once, and start nothing before the answer that is not next already.

        It is a hint. Where it is lost, the key is asked of in `REVIEW` seconds.
        """
        known = self._find(keyspace, key)
        if known is None:
            return
        known.elsewhere, known.ask_at = True, DUE
        for entry in known.entries:
            entry.pending = entry.pending or entry.stage is Stage.WAITING

    def asking(self, keyspace: str, keys: Iterable[str]) -> None:
        """These keys are about to be claimed: whether the answer comes or not, they may be ours after it."""
        for key in keys:
            if (known := self._find(keyspace, key)) is not None:
                known.asked = True
                self._released[keyspace].pop(key, None)
            else:
                self._released[keyspace][key] = None

    def to_release(self, keyspace: str) -> list[str]:
        """Return keys of which nothing is left here, and that we may have claimed."""
        self.take_in()
        gone, known = self._released.get(keyspace, {}), self._keys.get(keyspace, {})
        for key in gone.keys() & known.keys():
            del gone[key]  # it has come back, and nobody has given it back meanwhile
            known[key].asked = True
        return list(gone)  # of `_quiet` none is there: it was granted after it had come back

    def released(self, keyspace: str, keys: Iterable[str]) -> None:
        """These were given back."""
        for key in keys:
            self._released[keyspace].pop(key, None)

    # -- what was answered ---------------------------------------------------------------------

    def unstarted(self, keyspace: str, key: str) -> list[Entry]:
        """Return the entries of a key that have not started, in order."""
        known = self._keys[keyspace].get(key)
        return [entry for entry in known.entries if entry.stage in UNSTARTED] if known is not None else []

    def pinned(self, keyspace: str, key: str, pin: str) -> None:
        """The key is pinned by this incarnation, or (empty) by nobody: ask again with that in mind."""
        if (known := self._keys[keyspace].get(key)) is not None:
            known.pin, known.ask_at = pin, DUE

    def ask_at(self, keyspace: str, key: str, when: float) -> None:
        """Ask of this key again then."""
        if (known := self._keys[keyspace].get(key)) is not None:
            known.ask_at = when

    def held(self, keyspace: str, key: str, now: float) -> None:
        """Another worker has claimed the key: ask again, ever less often."""
        if (known := self._keys[keyspace].get(key)) is not None:
            since = known.held_since = now if known.held_since is None else known.held_since
            known.ask_at = now + min(HELD_LAST, max(HELD_FIRST, (now - since) / 10))

    def granted(self, keyspace: str, key: str, token: int, now: float) -> None:
        """The key is claimed: let its entries start."""
        known = self._keys[keyspace].get(key)
        if known is None:
            return
        known.token, known.elsewhere, known.ask_at, known.held_since = token, False, now + REVIEW, None
        for entry in list(known.entries):
            if entry.pending and not self._foreign(entry):
                self._gate.clear(entry, token)

    def reviewed(self, keyspace: str, key: str, now: float, *, elsewhere: bool) -> None:
        """The key is claimed still, and belongs here, or elsewhere by now."""
        known = self._keys[keyspace].get(key)
        if known is None:
            return
        if elsewhere:
            known.elsewhere, known.ask_at = True, now + REVIEW
        else:
            self.granted(keyspace, key, known.token, now)

    # -- jobs ----------------------------------------------------------------------------------

    def want_job(self, keyspace: str, key: str, pin: str) -> None:
        """A job of the key is to run here: have the key claimed for it."""
        known = self._take(keyspace, key)
        if known.job is Held.NOT:
            known.job, known.pin, known.ask_at, known.held_since = Held.WAITING, pin, DUE, None

    def hold_job(self, keyspace: str, key: str) -> int:
        """The place of the key's jobs is open here, under the token that is returned."""
        known = self._keys[keyspace][key]
        known.job = Held.OPEN
        self._put_away(keyspace, key, known)
        return known.token

    def leave_job(self, keyspace: str, key: str) -> None:
        """No job of the key is to run here, or runs here, any more."""
        if (known := self._find(keyspace, key)) is not None:
            known.job = Held.NOT
            self._take(keyspace, key)
            self._put_away(keyspace, key, known)

    def _find(self, keyspace: str, key: str) -> _Key | None:
        return self._keys.get(keyspace, {}).get(key) or self._quiet.get(keyspace, {}).get(key)

    def _take(self, keyspace: str, key: str) -> _Key:
        """Return a key as one of which something is to be decided."""
        keys = self._keys.setdefault(keyspace, {})
        if key not in keys:
            keys[key] = self._quiet.setdefault(keyspace, {}).pop(key, _Key())
        return keys[key]

    def _put_away(self, keyspace: str, key: str, known: _Key) -> None:
        """Forget a key of which nothing is left here, or lay it aside for as long as only its jobs go on."""
        if known.entries or known.job is Held.WAITING:
            return
        del self._keys[keyspace][key]
        if known.job is Held.OPEN:
            self._quiet.setdefault(keyspace, {})[key] = known
        elif known.asked:
            self._released[keyspace][key] = None

    def _foreign(self, entry: Entry) -> bool:
        """Whether it comes from the worker queue of another worker: nothing of that runs here."""
        keyspace, slot = entry.slot
        return isinstance(slot, str) and slot != self._mine.get(keyspace)


def _claim_of(entry: Entry) -> KeyId:
    assert entry.claim is not None
    return entry.claim
