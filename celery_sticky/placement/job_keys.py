"""The keys of a placed keyspace that have jobs, and this worker's work on them. Pure.

All of them are known here, also those of other workers, so a change of members needs no lookups to see who owns what.
There may be very many keys: keys without changes cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from celery_sticky.placement.rules import Duty, Scene

RETRY_FIRST, RETRY_LAST = 1.0, 60.0
"""Seconds before retrying the function for keys for which it failed: first and maximum; the pause doubles."""


class KeyStage(Enum):
    """How far this worker is with the jobs of a key."""

    OUT = "out"
    ASKING = "asking"
    """It has requested the claim."""
    OPEN = "open"
    """It has the claim, and the keeper has the place."""
    LEAVING = "leaving"
    """They belong elsewhere, and run on until no task of the key is left here: nobody else can claim it before."""
    STOPPING = "stopping"
    """The keeper is stopping them."""


@dataclass(slots=True)
class _Job:
    pin: str = ""
    """The incarnation that pinned the key, as far as known; empty: none."""
    looked: bool = False
    """Whether the pin was ever looked up."""
    stage: KeyStage = KeyStage.OUT
    duty: Duty = Duty.NONE
    """The duty for which the place is open."""
    token: int = 0
    gone: bool = False
    """The key has no jobs any more, as far as known."""


@dataclass(slots=True)
class Changes:
    """The changes to carry out."""

    want: list[tuple[str, str]] = field(default_factory=list)
    """Keys to claim, and the incarnation that pinned each."""
    leave: list[str] = field(default_factory=list)
    """Keys whose claim is no longer needed."""
    stop: list[str] = field(default_factory=list)
    """Keys whose place must be given away at once: no job runs in it."""
    failed: str = ""
    """Why the function failed for a key that this worker tends; empty: it did not."""


class JobKeys:
    """The keys of one keyspace that have jobs. `now` is in seconds on one clock."""

    def __init__(self, *, pins: bool) -> None:
        self._pins = pins
        self._jobs: dict[str, _Job] = {}
        self._held: set[str] = set()
        self.leaving: dict[str, None] = {}
        """Keys whose jobs are to stop when no task of the key is left here."""
        self._unsure: dict[str, None] = {}
        """Keys whose pin must be looked up."""
        self._due: dict[str, None] = {}
        self._refused: dict[str, float] = {}
        """Key whose place could not be opened -> when to claim it again."""
        self._failing: set[str] = set()
        self._failures = 0
        self._retry_at = 0.0
        self._round: list[str] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def held(self) -> bool:
        """True if jobs of any key are here or may arrive."""
        return bool(self._held)

    # -- what is known -------------------------------------------------------------------------

    def knows(self, key: str) -> bool:
        """True if the key is known to have jobs. Any thread may ask."""
        job = self._jobs.get(key)
        return job is not None and not job.gone

    def wanted(self, keys: Iterable[str]) -> None:
        """Note that these keys may have jobs."""
        for key in keys:
            if not self.knows(key):
                job = self._jobs.setdefault(key, _Job())
                job.gone = job.looked = False  # decide again even if the pin is the same: meanwhile nothing was done
                self._look_at(key)

    def listed(self, keys: Collection[str]) -> None:
        """Note that these keys have jobs, and no others."""
        self.wanted(keys)
        there = set(keys)
        for key, job in self._jobs.items():
            if key not in there and not job.gone:
                job.gone = True
                self._due[key] = None

    def drained(self, key: str, token: int, now: float, *, vacant: bool) -> bool:
        """Note that nothing of the key's jobs is left here; False: the report concerns an earlier claim."""
        job = self._jobs.get(key)
        if job is None or job.token != token or job.stage in (KeyStage.OUT, KeyStage.ASKING):
            return False
        if job.stage is KeyStage.OPEN and not vacant:
            self._refused[key] = now + RETRY_FIRST  # the records have a later token: tokens grow with time, so retry
        else:
            self._due[key] = None
        self._set(key, job, KeyStage.OUT)
        job.gone |= vacant
        return True

    def pin_changed(self, key: str) -> None:
        """Note that the pin of a key changed."""
        if key in self._jobs:
            self._look_at(key)

    def review(self) -> None:
        """Re-check every key after the members changed."""
        self._due = dict.fromkeys(self._jobs)

    def reset(self) -> None:
        """Forget all claims, because a membership ended or began."""
        for job in self._jobs.values():
            job.stage, job.duty, job.token = KeyStage.OUT, Duty.NONE, 0
        self._held.clear()
        self.leaving.clear()
        self.review()

    # -- pins ----------------------------------------------------------------------------------

    def sweep(self, most: int) -> None:
        """Queue the pins of some more keys, in rotation, for lookup: a signal may have been lost."""
        if not self._round:
            self._round = list(self._jobs)
        part, self._round = self._round[-most:], self._round[:-most]
        self._unsure.update(dict.fromkeys(key for key in part if key in self._jobs))

    def to_look(self, most: int) -> list[str]:
        """Return keys whose pins must be looked up."""
        return [key for key, _ in zip(self._unsure, range(most), strict=False)]

    def looked(self, keys: Iterable[str], pins: Mapping[str, str]) -> None:
        """Take in the pins that were looked up for these keys."""
        for key in keys:
            del self._unsure[key]
            if (job := self._jobs.get(key)) is not None and (not job.looked or job.pin != pins.get(key, "")):
                job.pin, job.looked = pins.get(key, ""), True
                self._due[key] = None

    # -- what to do ----------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """True if there is more to do at once."""
        return bool(self._due or self._unsure)

    def decide(self, scene: Scene, now: float, most: int) -> Changes:
        """Decide on keys that are due; the caller must carry out the returned changes."""
        if self._failing and now >= self._retry_at:
            self._due.update(dict.fromkeys(self._failing))
        for key in [key for key, at in self._refused.items() if at <= now]:
            del self._refused[key]
            self._due[key] = None
        changes = Changes()
        for key in [key for key, _ in zip(self._due, range(most), strict=False)]:
            del self._due[key]
            self._failing.discard(key)
            if key not in self._refused and (job := self._jobs.get(key)) is not None:
                self._change(key, job, self._duty(key, job, scene, changes), changes)
        if not self._failing:
            self._failures = 0
        elif now >= self._retry_at:
            self._retry_at = now + min(RETRY_FIRST * 2.0 ** min(self._failures, 10), RETRY_LAST)
            self._failures += 1
        else:
            changes.failed = ""  # already reported, and reported again at the next retry
        return changes

    def granted(self, key: str, token: int, duty: Duty, pin: str) -> None:
        """Note that the key was claimed for this duty, while it had this pin."""
        job = self._jobs[key]
        self._set(key, job, KeyStage.OPEN)
        job.token, job.duty, job.pin = token, duty, pin

    def left(self, key: str, pin: str) -> None:
        """Note that the key was not claimed: with this pin it belongs elsewhere."""
        job = self._jobs[key]
        self._set(key, job, KeyStage.OUT)
        job.pin = pin

    def _look_at(self, key: str) -> None:
        (self._unsure if self._pins else self._due)[key] = None

    def _duty(self, key: str, job: _Job, scene: Scene, changes: Changes) -> Duty:
        if job.gone:
            return Duty.NONE
        placement = scene.placement(key, job.pin)
        duty = scene.duty(key, placement)
        if placement.failed:
            self._failing.add(key)
            if duty is Duty.TEND:
                changes.failed = str(placement.refusal)
        return duty

    def _change(self, key: str, job: _Job, duty: Duty, changes: Changes) -> None:
        match job.stage:
            case KeyStage.OUT if duty is not Duty.NONE:
                self._set(key, job, KeyStage.ASKING)
                changes.want.append((key, job.pin))
            case KeyStage.OUT if job.gone:
                del self._jobs[key]
            case KeyStage.ASKING if duty is Duty.NONE:
                self._set(key, job, KeyStage.OUT)
                changes.leave.append(key)
                self._due[key] = None  # its jobs may be gone
            case KeyStage.LEAVING if duty is job.duty:
                self._set(key, job, KeyStage.OPEN)
            case KeyStage.OPEN if duty is not job.duty and not job.gone:
                if job.duty is Duty.RUN:
                    self._set(key, job, KeyStage.LEAVING)
                else:
                    self._set(key, job, KeyStage.STOPPING)
                    changes.stop.append(key)

    def without_tasks(self, busy: Collection[str]) -> list[str]:
        """Return the leaving keys whose jobs must stop now, as no task of them is left here: all but these."""
        free = [key for key in self.leaving if key not in busy]
        for key in free:
            self._set(key, self._jobs[key], KeyStage.STOPPING)
        return free

    def _set(self, key: str, job: _Job, stage: KeyStage) -> None:
        job.stage = stage
        if stage is KeyStage.LEAVING:
            self.leaving[key] = None
        else:
            self.leaving.pop(key, None)
        if stage is KeyStage.OUT:
            self._held.discard(key)
        else:
            self._held.add(key)
