"""Suspects: jobs that may be killing the job host again and again, and when they may start.

All jobs of a host die with it, and one of them may be the cause. Suspected are the jobs that began a moment before, or
otherwise those that began within a minute. Suspects are tried in groups. A group starts when nothing else is starting,
and is cleared if the host survives the trial. If it does not, the group is halved. A job that was tried alone is
charged, and waits longer each time. So innocent jobs are soon cleared, however many there are.

No clock, no process. The keepers of several keyspaces share one object, as they share the host, so calls take a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from celery_sticky.platform.native import original

Who = tuple[str, str]
"""Keyspace and id of a job."""

YOUNG = 60.0
"""Seconds after its start in which a job may have ended the host; after that it counts as innocent."""
ALONE = 10.0
"""Maximum seconds for which other starts wait for those of suspects, and vice versa."""
LINGER = 1.0
"""Seconds that a trial lasts; it grows up to `YOUNG` if the host dies later than that."""
CHARGE_FIRST, CHARGE_LAST = 1.0, 600.0
"""Seconds until a charged job is started again: first and maximum; the pause doubles."""
FORGET = 2 * CHARGE_LAST
"""Seconds without a death after which no job is suspected any more."""
LONE_STARTS = 2
"""Starts of a job just before it is given up in which no other possible cause may run beside it."""
STEP = 0.1
"""Seconds until a delayed start is requested again."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge against a job."""

    count: int
    """How often the host died while the job was tried alone."""
    lone: int
    """How often, among these, the job was starting and nothing else could be the cause."""
    until: float
    """When the job may start again."""


@dataclass(slots=True, eq=False)
class _Group:
    """Suspects that are tried together."""

    members: set[Who] = field(default_factory=set)


class Suspects:
    """The suspects of one worker. `now` is in seconds on one clock."""

    def __init__(self) -> None:
        self._lock = original("_thread", "allocate_lock")()
        self._began: dict[Who, float] = {}
        """The jobs in the host -> when each began."""
        self._starting: set[Who] = set()
        self._groups: dict[Who, _Group] = {}
        self._trials: dict[Who, float] = {}
        """Job on trial -> when its trial ends."""
        self._charges: dict[Who, Charge] = {}
        self._charged: Collection[Who] = ()
        """The jobs charged by the last death."""
        self._witnesses: frozenset[Who] = frozenset()
        """The jobs in the host at the last death."""
        self._died_at = float("-inf")
        self._linger = LINGER
        self._turn: tuple[_Group | None, float] = (None, 0.0)
        """The group that was told to start, and until when others wait for it."""
        self._other_at: float | None = float("-inf")
        """When a job that is no suspect was last told to start; None: none has asked yet in this host."""
        self._kept = (0.0, 0.0)
        """Since when, and until when, suspects wait for the starts of others."""

    # -- the jobs in the host ------------------------------------------------------------------

    def began(self, who: Who, now: float) -> None:
        """Note that its start has begun."""
        with self._lock:
            self._began[who] = now
            self._starting.add(who)
            if who in self._groups:
                self._trials[who] = now + self._linger
                self._turn = (None, 0.0)

    def started(self, who: Who) -> None:
        """Note that its start has completed and it runs."""
        with self._lock:
            self._starting.discard(who)

    def ended(self, who: Who) -> None:
        """Note that nothing of it is in the host any more."""
        with self._lock:
            self._began.pop(who, None)
            self._starting.discard(who)
            self._trials.pop(who, None)

    # -- who may start -------------------------------------------------------------------------

    def ask(self, who: Who, now: float, *, last_chance: bool = False) -> float:
        """Return when to ask again; if this is not after `now`, the job may start.

        `last_chance`: if the host dies, the job may be given up, so no other possible cause may run beside it.
        """
        with self._lock:
            if not (self._groups or self._charges or last_chance):
                return now
            self._clear(now)
            charge = self._charges.get(who)
            if charge is not None and now < charge.until:
                return charge.until
            if last_chance:
                self._set_apart(who)
            group = self._groups.get(who)
            if group is None:
                if self._others_wait(now):
                    return now + STEP
                self._other_at = now
                return now
            at = self._suspect_waits(who, group, now, last_chance=last_chance)
            if at <= now:
                self._turn, self._kept = (group, now + 1.0), (0.0, 0.0)
            return at

    def _others_wait(self, now: float) -> bool:
        since, until = self._kept
        impatient = now < until and now >= since + 1.0  # otherwise suspects might wait forever
        return impatient or now < self._turn[1] or any(self._is_fresh_start(who, now) for who in self._trials)

    def _suspect_waits(self, who: Who, group: _Group, now: float, *, last_chance: bool) -> float:
        turn, until = self._turn
        if any(other not in group.members for other in self._trials) or (turn is not group and now < until):
            return now + STEP
        if self._other_at is None:
            self._other_at = now
        others = any(self._is_fresh_start(one, now) for one in self._starting if one not in group.members)
        if others or now < self._other_at + 2 * STEP:
            since, until = self._kept
            self._kept = (since if now < until else now), now + 5 * STEP
            return now + STEP
        young = (self._is_young(one, now) for one in self._witnesses if one != who and one in self._began)
        return now + 10 * STEP if last_chance and who in self._charges and any(young) else now

    def _is_young(self, who: Who, now: float) -> bool:
        return now < self._began[who] + min(3 * self._linger, YOUNG)

    def _is_fresh_start(self, who: Who, now: float) -> bool:
        return who in self._starting and now < self._began[who] + ALONE

    def _clear(self, now: float) -> None:
        if float("-inf") < self._died_at < now - FORGET:
            self._died_at = float("-inf")
            self._groups.clear()
            self._charges.clear()
        for who in [who for who, over in self._trials.items() if over <= now]:
            del self._trials[who]
            if group := self._groups.pop(who, None):
                group.members.discard(who)

    def _set_apart(self, who: Who) -> None:
        group = self._groups.get(who)
        if group is None or len(group.members) > 1:
            self._suspect([who])

    def _suspect(self, some: Sequence[Who]) -> None:
        group = _Group()
        for who in some:
            if before := self._groups.get(who):
                before.members.discard(who)
            group.members.add(who)
            self._groups[who] = group

    # -- the death of a host -------------------------------------------------------------------

    def host_ended(self, now: float, *, killed: bool) -> None:
        """Take in the end of the host and all its jobs. `killed`: we killed it, so no job is the cause."""
        with self._lock:
            self._clear(now)
            self._charged = ()
            if not killed:
                self._accuse(now)
            self._witnesses = frozenset(self._began)
            self._began.clear()
            self._starting.clear()
            self._trials.clear()
            self._turn, self._other_at, self._kept = (None, 0.0), None, (0.0, 0.0)

    def charged(self, who: Who) -> Charge | None:
        """Return the charge against a job if the last death added to it."""
        with self._lock:
            return self._charges[who] if who in self._charged else None

    def _accuse(self, now: float) -> None:
        again, self._died_at = now <= self._died_at + FORGET, now
        tried = list(self._trials)
        accused = tried + [who for who in self._since(now - self._linger) if who not in self._trials]
        late = not accused
        if late:
            accused = self._since(now - YOUNG)
        if len(accused) == 1 or (len(tried) == 1 and self._witnesses.isdisjoint(accused[1:])):
            # If another job is the cause, a later death will accuse it.
            self._groups = {who: group for who, group in self._groups.items() if who in self._charges}
            self._charge(accused[0], now)
            self._suspect(accused[:1])
        half = len(tried) if 0 < len(tried) < len(accused) else len(accused) // 2
        self._suspect(accused[:half])
        self._suspect(accused[half:])
        # Late: the culprit was cleared too soon. Otherwise maybe too: an innocent job was on trial meanwhile.
        self._linger = min(self._linger * (4 if late else 1.25), YOUNG) if again else LINGER

    def _since(self, then: float) -> list[Who]:
        return [who for who, began in self._began.items() if began > then]

    def _charge(self, who: Who, now: float) -> None:
        before = self._charges.get(who, Charge(0, 0, 0.0))
        # A job that was absent at the last death did not cause that one, and probably not this one.
        others = [one for one in self._began if one != who and (one in self._witnesses or who not in self._witnesses)]
        lone = self._starting == {who} and not any(self._is_young(one, now) for one in others)
        wait = min(CHARGE_FIRST * 2.0 ** min(before.count, 20), CHARGE_LAST)
        self._charges[who] = Charge(before.count + 1, before.lone + lone, now + wait)
        self._charged = (who,)
