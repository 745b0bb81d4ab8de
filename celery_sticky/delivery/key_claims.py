"""The keys of placed keyspaces that this worker deals with, and which of them it may run. Pure.

An entry of such a keyspace enters the gate, but it starts only once its key is claimed. The worker keeps the claim
while an entry or a job of the key is left here, and checks from time to time whether the key still belongs here.
Threads that share this object hold the courier's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from celery_sticky.delivery.gate import Entry, Gate, Stage
from celery_sticky.keys import KeyId
from celery_sticky.slots import Slot, WorkerQueue

HELD_FIRST, HELD_LAST = 0.05, 1.0
"""Shortest and longest pause between checks whether another worker has released a key; else a tenth of the wait."""
REVIEW = 1.0
"""How often a claimed key is re-checked, in seconds."""
DUE = 0.0
"""The value of `ask_at` for a key that must be checked at once because something changed."""
IDLE = (Stage.WAITING, Stage.GONE)
"""The stages of an entry that does not lock its key."""


@dataclass(slots=True)
class Question:
    """A key that needs a decision."""

    key: str
    pin: str
    """The incarnation that pinned it, as far as is known."""
    claimed: bool
    slots: Collection[Slot]
    """The queues that its unstarted messages came from."""
    job: bool = False
    """Whether a job waits for the claim."""


class Held(Enum):
    """Whether a key is held for its jobs."""

    NOT = 0
    WAITING = 1
    """The jobs wait for the claim."""
    OPEN = 2
    """Their place is open here."""


@dataclass(slots=True)
class _Key:
    entries: dict[Entry, None] = field(default_factory=dict)
    """In order of arrival."""
    pin: str = ""
    token: int = 0
    """The fencing token of the claim; 0: not claimed."""
    asked: bool = False
    """Whether a claim was requested, so that the key may be claimed."""
    elsewhere: bool = False
    """Whether the claimed key may belong to another worker now: started tasks end here, others move or wait."""
    ask_at: float = DUE
    held_since: float | None = None
    """Time since which another worker is known to hold the claim."""
    job: Held = Held.NOT
    """Whether jobs of the key need the claim."""

    @property
    def in_question(self) -> bool:
        """Whether only the entry that is next may start before the placement of the key has been checked."""
        return self.elsewhere or self.ask_at == DUE

    def hold_back(self) -> None:
        """Note that the key may belong elsewhere: only the entry that is next may still start."""
        self.elsewhere = True
        for entry in self.entries:
            entry.pending = entry.pending or entry.stage is Stage.WAITING


class KeyClaims:
    """The key claims of all placed keyspaces of a worker. `now` is in seconds on one clock."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._keys: dict[str, dict[str, _Key]] = {}
        """Keys with entries, or with a job that waits."""
        self._quiet: dict[str, dict[str, _Key]] = {}
        """Keys claimed for jobs alone: there may be very many, and they need no decisions here."""
        self._incarnations: dict[str, str] = {}
        self._mine: dict[str, str] = {}
        self._released: dict[str, dict[str, None]] = {}
        """Keys that we may have claimed and of which nothing is left here, in the order in which they became free."""

    def serve(self, keyspace: str, incarnation: str, mine: str) -> list[str]:
        """Set the worker's incarnation and worker queue in the keyspace; claims of an earlier incarnation are void.

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
                entry.pending = True  # started tasks continue; to start again they need a new claim
        self._keys[keyspace] = {key: known for key, known in keys.items() if known.entries}
        return held

    def incarnation(self, keyspace: str) -> str:
        """Return the worker's incarnation in the keyspace."""
        return self._incarnations.get(keyspace, "")

    # -- entries -------------------------------------------------------------------------------

    def prepare(self, entry: Entry) -> None:
        """Prepare an entry that is about to enter the gate or to have another turn."""
        keyspace, key = _claim_of(entry)
        known = self._find(keyspace, key)
        entry.pending = known is None or not known.token or known.in_question or self._foreign(entry)
        if known is not None:
            entry.token = known.token

    def note(self, entry: Entry) -> None:
        """Record an entry that is in the gate."""
        keyspace, key = _claim_of(entry)
        known = self._take(keyspace, key)
        known.entries[entry] = None
        if entry.pending:
            known.ask_at = DUE

    def take_in(self) -> None:
        """Remove the entries that have left the gate."""
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
        """Return the keys known to be claimed of which a message runs or may still start."""
        return frozenset(
            key
            for key, known in self._keys.get(keyspace, {}).items()
            if known.token and any(entry.stage not in (Stage.ENDED, Stage.GONE) for entry in known.entries)
        )

    def busy(self, keyspace: str, keys: Iterable[str]) -> set[str]:
        """Return those of these keys of which a task runs here, or is the next to run."""
        self.take_in()
        known = self._keys.get(keyspace, {})
        return {key for key in keys if key in known and any(e.stage not in IDLE for e in known[key].entries)}

    # -- requests ------------------------------------------------------------------------------

    def questions(self, keyspace: str, now: float, most: int) -> list[Question]:
        """Return at most `most` keys that need a decision now."""
        self.take_in()
        found: list[Question] = []
        for key, known in self._keys.get(keyspace, {}).items():
            if len(found) == most:
                break
            if now < known.ask_at:
                continue
            slots = {entry.slot[1] for entry in known.entries if entry.unstarted}
            waiting = known.job is Held.WAITING
            if slots or waiting:
                found.append(Question(key, known.pin, bool(known.token), slots, waiting))
        return found

    def review(self, keyspace: str) -> None:
        """Check every key of the keyspace again: the members have changed."""
        for keys in (self._keys, self._quiet):
            for known in keys.get(keyspace, {}).values():
                known.ask_at = DUE

    def doubt(self, keyspace: str, key: str) -> None:
        """Check the key at once, because its pin changed. Until the answer only the entry that is next may start.

        The signal is a hint. If it is lost, the key is checked within `REVIEW` seconds.
        """
        known = self._find(keyspace, key)
        if known is None:
            return
        known.ask_at = DUE
        known.hold_back()

    def asking(self, keyspace: str, keys: Iterable[str]) -> None:
        """Note that these keys are about to be claimed: even without an answer they may then be ours."""
        for key in keys:
            if (known := self._find(keyspace, key)) is not None:
                known.asked = True
                self._released[keyspace].pop(key, None)
            else:
                self._released[keyspace][key] = None

    def to_release(self, keyspace: str) -> list[str]:
        """Return the keys that we may have claimed and of which nothing is left here."""
        self.take_in()
        gone, known = self._released.get(keyspace, {}), self._keys.get(keyspace, {})
        for key in gone.keys() & known.keys():
            del gone[key]  # entries have come back, and the claim was not released meanwhile
            known[key].asked = True
        return list(gone)  # contains no key of `_quiet`: those came back before they were granted

    def released(self, keyspace: str, keys: Iterable[str]) -> None:
        """Note that the claims of these keys were released."""
        for key in keys:
            self._released[keyspace].pop(key, None)

    # -- answers -------------------------------------------------------------------------------

    def unstarted(self, keyspace: str, key: str) -> list[Entry]:
        """Return the entries of a key that have not started, in order."""
        known = self._keys[keyspace].get(key)
        return [entry for entry in known.entries if entry.unstarted] if known is not None else []

    def pinned(self, keyspace: str, key: str, pin: str) -> None:
        """Note the incarnation that pins the key (empty: none), and check the key again."""
        if (known := self._keys[keyspace].get(key)) is not None:
            known.pin, known.ask_at = pin, DUE

    def ask_at(self, keyspace: str, key: str, when: float) -> None:
        """Check this key again at `when`."""
        if (known := self._keys[keyspace].get(key)) is not None:
            known.ask_at = when

    def held(self, keyspace: str, key: str, now: float) -> None:
        """Note that another worker holds the claim, and ask again at growing intervals."""
        if (known := self._keys[keyspace].get(key)) is not None:
            since = known.held_since = now if known.held_since is None else known.held_since
            known.ask_at = now + min(HELD_LAST, max(HELD_FIRST, (now - since) / 10))

    def granted(self, keyspace: str, key: str, token: int, now: float) -> None:
        """Let the entries of a claimed key start."""
        known = self._keys[keyspace].get(key)
        if known is None:
            return
        known.token, known.elsewhere, known.ask_at, known.held_since = token, False, now + REVIEW, None
        for entry in list(known.entries):
            if entry.pending and not self._foreign(entry):
                self._gate.clear(entry, token)

    def reviewed(self, keyspace: str, key: str, now: float, *, elsewhere: bool) -> None:
        """Note whether a claimed key still belongs here or now belongs elsewhere."""
        known = self._keys[keyspace].get(key)
        if known is None:
            return
        if elsewhere:
            known.ask_at = now + REVIEW
            known.hold_back()
        else:
            self.granted(keyspace, key, known.token, now)

    # -- jobs ----------------------------------------------------------------------------------

    def want_job(self, keyspace: str, key: str, pin: str) -> None:
        """Request a claim of the key for a job that should run here."""
        known = self._take(keyspace, key)
        if known.job is Held.NOT:
            known.job, known.pin, known.ask_at, known.held_since = Held.WAITING, pin, DUE, None

    def hold_job(self, keyspace: str, key: str) -> int:
        """Note that the place of the key's jobs is open here; return the fencing token of the claim."""
        known = self._keys[keyspace][key]
        known.job = Held.OPEN
        self._put_away(keyspace, key, known)
        return known.token

    def leave_job(self, keyspace: str, key: str) -> None:
        """Note that no job of the key runs here or should run here any more."""
        if (known := self._find(keyspace, key)) is not None:
            known.job = Held.NOT
            self._take(keyspace, key)
            self._put_away(keyspace, key, known)

    def _find(self, keyspace: str, key: str) -> _Key | None:
        return self._keys.get(keyspace, {}).get(key) or self._quiet.get(keyspace, {}).get(key)

    def _take(self, keyspace: str, key: str) -> _Key:
        """Return a key as one that needs decisions."""
        keys = self._keys.setdefault(keyspace, {})
        if key not in keys:
            keys[key] = self._quiet.setdefault(keyspace, {}).pop(key, _Key())
        return keys[key]

    def _put_away(self, keyspace: str, key: str, known: _Key) -> None:
        """Forget a key of which nothing is left here, or set it aside while only its jobs continue."""
        if known.entries or known.job is Held.WAITING:
            return
        del self._keys[keyspace][key]
        if known.job is Held.OPEN:
            self._quiet.setdefault(keyspace, {})[key] = known
        elif known.asked:
            self._released[keyspace][key] = None

    def _foreign(self, entry: Entry) -> bool:
        """Return whether the entry comes from another worker's queue: nothing of that runs here."""
        keyspace, slot = entry.slot
        return isinstance(slot, WorkerQueue) and slot != self._mine.get(keyspace)


def _claim_of(entry: Entry) -> KeyId:
    assert entry.claim is not None
    return entry.claim
