"""The scenario of a simulated world: data drawn from a seed in advance, so that it can be reduced and replayed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from celery_sticky.queues.base import RunClaim
from simulator.jobs_scenario import Jobs, draw_jobs
from simulator.ledger_scenario import Delivery, draw_ledger
from simulator.placing import WAYS, Pin, PlacementSetup, draw_pins
from simulator.terms import HASH

TROUBLE = 40.0
"""Seconds during which faults happen."""
NAMES = "abcde"
PLACED_EVERY = 4
"""One seed in this many is a world with a placed keyspace."""


class Kind(StrEnum):
    """The kinds of faults of a worker or a server. Their weights are in `LIKELY`."""

    PAUSE = "pause"
    """Its main process and the children of its pool are paused."""
    FREEZE = "freeze"
    """Its main process alone is paused."""
    CRASH = "crash"
    """It is killed, and started again under its name."""
    LEAVE = "leave"
    """It is told to stop, killed if it takes too long, and started again."""
    CUT_STORE = "cut off from the store"
    CUT_BROKER = "cut off from the broker"
    CUT = "cut off from both"
    OUTAGE = "store away"
    DEAF = "subscriptions break"
    WIPE = "store loses all"
    RESTART = "store restarts"
    FAIL_OVER = "store fails over to older data"
    HANG = "its loop hangs"
    """It starts no tasks and sees none end, while its heartbeats go on."""
    BROKER_BACK = "broker fails over to older data"
    JOIN = "workers join"
    BROKEN = "records of a slot are unusable"
    """The broker can neither open nor serve nor settle this slot."""


LIKELY = {
    Kind.PAUSE: 6, Kind.FREEZE: 3, Kind.CRASH: 6, Kind.LEAVE: 3, Kind.CUT_STORE: 4, Kind.CUT_BROKER: 4, Kind.CUT: 2,
    Kind.OUTAGE: 2, Kind.DEAF: 1, Kind.WIPE: 1, Kind.RESTART: 1, Kind.FAIL_OVER: 2, Kind.JOIN: 1,
}  # fmt: skip
BROKER_GOES_BACK = 0.2
"""The share of worlds whose broker fails over to older data, in addition to their other faults."""
LOOP_HANGS = 0.2
"""The share of worlds in which the loop of a worker hangs."""
SLOT_BREAKS = 0.2
"""The share of worlds in which the records of a slot are unusable for a while."""
TASKS_BESIDE_JOBS = 4
"""Where there are jobs, one task in this many is sent."""
SLOW_WORLDS, SLOW = 0.2, 30.0
"""The share of worlds with jobs in which workers only join and leave, while many tasks take this long (seconds)."""
LENGTHS = (0.5, 3.0, 9.0, 13.0, 20.0)
"""Typical lengths of faults, in seconds: the lease is 10 s, its margin 2 s."""


class Point(StrEnum):
    """The step of a fault's victim at which it strikes."""

    NOW = "at once"
    STORE_ASKED = "as it asks the store"
    STORE_ANSWERED = "as the store answers"
    OPEN_ASKED = "as it opens a slot"
    OPEN_ANSWERED = "as its opening is answered"
    FETCH_ASKED = "as it fetches or settles"
    FETCH_ANSWERED = "as what it fetched or settled is answered"
    HANDED = "as a task is handed to its pool"
    STARTED = "as a task starts"
    ENDED = "as a task ends"
    PLACEMENT_STORE_ASKED = "as its placer asks the placement store"
    DIRECTORY_ANSWERED = "as its placer is answered"
    KEEPER_ASKED = "as its keeper writes to the job store"
    KEEPER_ANSWERED = "as its keeper's write is answered"


PLAIN_POINTS, PLACED_POINTS = tuple(Point)[:-4], tuple(Point)[:-2]
JOB_POINTS = (*PLAIN_POINTS, Point.KEEPER_ASKED, Point.KEEPER_ANSWERED)


class Ending(StrEnum):
    """How a run of a task ends, if nothing interrupts it."""

    FINISH = "finishes"
    RETRY = "asks for a retry"
    REQUEUE = "is rejected, to run again"
    BURY = "is rejected for good"
    DIE = "loses its process"


OUTCOMES = (Ending.FINISH,) * 16 + (Ending.RETRY,) * 3 + (Ending.REQUEUE, Ending.DIE, Ending.DIE, Ending.BURY)
SECONDS = (0.0, 0.01, 0.01, 0.3, 1.0, 3.0)
"""How long tasks run, in seconds; one in forty takes 12 s."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that strikes at `at` (seconds) or later, at the next `point` of its victim."""

    at: float
    kind: Kind
    victim: str = ""
    """A worker's name; empty: a server."""
    point: Point = Point.NOW
    seconds: float = 0.0
    """How long it lasts; CRASH, LEAVE: the time until the worker is started again, or killed."""
    proof: bool = False
    """CRASH: whether the next process can prove that the former one is dead."""
    number: int = 0
    """JOIN: how many workers. BROKEN: which slot."""

    def __str__(self) -> str:
        words = [f"{self.at:6.2f}", self.victim or "servers", self.kind, self.point if self.victim else ""]
        words += [f"{self.seconds:.1f} s" if self.seconds else "", "with proof" if self.proof else ""]
        return " ".join(str(word) for word in [*words, self.number or ""] if word)


@dataclass(frozen=True, slots=True)
class Task:
    """The next task of its key, sent at `at` (seconds)."""

    at: float
    key: int
    n: int
    priority: int = 0
    countdown: float = 0.0
    """Seconds until it is due."""
    seconds: float = 0.01
    """How long each run takes."""
    ends: tuple[Ending, ...] = ()
    """How its first runs end; later runs finish."""
    delivery: Delivery = Delivery.PLAIN
    copies: tuple[float, ...] = ()
    """Seconds after which its message is published again."""
    identical: bool = False
    """Whether that is the same message in each byte."""

    def claim(self, retries: int) -> RunClaim | None:
        """Return its run after so many retries as the ledger names it; None: it does not use the ledger."""
        if self.delivery is Delivery.PLAIN:
            return None
        return RunClaim(f"{self.key}-{self.n}/{retries}", self.delivery is Delivery.ONCE)

    def __str__(self) -> str:
        ends = ", then ".join(self.ends) or Ending.FINISH
        words = [f"{self.at:6.2f} key {self.key} #{self.n}: {self.seconds:.2f} s, {ends}"]
        words += [f"priority {self.priority}" if self.priority else ""]
        words += [f"in {self.countdown:.1f} s" if self.countdown else ""]
        words += [self.delivery if self.delivery is not Delivery.PLAIN else ""]
        words += [f"published again after {delay:.2f} s" for delay in self.copies]
        words += ["with the same bytes" if self.identical else ""]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed decides about a world, except the delays within it."""

    seed: int
    names: str = "abc"
    weights: tuple[int, ...] = (1, 1, 1, 1, 1)
    slots: int = 6
    concurrency: int = 2
    losses: float = 0.0
    """The share of requests to the store that are lost on either way, or come late; and of signals."""
    broker_losses: float = 0.0
    deaf: bool = False
    """No signal ever arrives."""
    founded: bool = True
    """Whether there is a document already, as after `celery sticky init`."""
    faults: tuple[Fault, ...] = ()
    tasks: tuple[Task, ...] = ()
    placement: PlacementSetup | None = None
    """None: the keyspace is not placed."""
    pins: tuple[Pin, ...] = ()
    jobs: Jobs | None = None
    """None: it has no jobs, and its workers no keepers."""
    held: bool = False
    """Whether slots are held at the broker by connections, not fenced by epochs."""
    away: str = ""
    """Names of workers that are not started again once they have ended."""
    claim_ahead: int | None = None
    """Most runs that a worker claims ahead of their start; None: no task uses the ledger of runs."""

    @property
    def ends(self) -> list[float]:
        """When its faults are over."""
        hosts = self.jobs.faults if self.jobs is not None else ()
        return [fault.at + fault.seconds for fault in self.faults] + [fault.over_at for fault in hosts]

    @property
    def hash(self) -> str:
        """The document's identifier of how keys are mapped."""
        return HASH if self.placement is None else self.placement.keyspace.hash_name


def draw(
    seed: int,
    *,
    kinds: Collection[Kind] = tuple(Kind),
    deaf: bool = False,
    placed: bool | None = None,
    jobs: bool = False,
    held: bool = False,
    once: bool = False,
) -> Scenario:
    """Return the scenario of a seed, with faults of these kinds. `placed` None: the seed chooses.

    `once`: its tasks use the ledger of runs. Its broker does not go back: it would lose claims with the other data.
    """
    if once:
        kinds = [kind for kind in kinds if kind is not Kind.BROKER_BACK]
        return _use_ledger(_draw(seed, kinds=kinds, deaf=deaf, placed=placed))
    if jobs:
        drawn = _draw_with_jobs(seed, kinds, JOB_POINTS if not placed else tuple(Point), deaf=deaf)
        return replace(_place(drawn) if placed else drawn, held=held)
    return replace(_draw(seed, kinds=kinds, deaf=deaf, placed=placed), held=held)


def _draw(seed: int, *, kinds: Collection[Kind], deaf: bool, placed: bool | None) -> Scenario:
    placed = seed % PLACED_EVERY == 1 if placed is None else placed
    scenario = _draw_plain(seed, kinds, PLAIN_POINTS if not placed else PLACED_POINTS, deaf=deaf)
    if Kind.BROKER_BACK in kinds:
        scenario = replace(scenario, faults=(*scenario.faults, *_broker_faults(Random(f"broker {seed}"))))
    if Kind.HANG in kinds:
        scenario = replace(scenario, faults=(*scenario.faults, *_hangs(Random(f"hang {seed}"), scenario.names)))
    if Kind.BROKEN in kinds:
        scenario = replace(scenario, faults=(*scenario.faults, *_breaks(Random(f"broken {seed}"), scenario.slots)))
    return _place(scenario) if placed else scenario


def _use_ledger(scenario: Scenario) -> Scenario:
    """Return the scenario with tasks that run at most once, tasks that are deduplicated, and messages sent twice.

    Only in a plain keyspace copies may be identical: where keys are placed, each has an order of its own to be judged.
    """
    drawn = draw_ledger(scenario.seed, len(scenario.tasks), scenario.concurrency)
    plain = scenario.placement is None
    parts = zip(scenario.tasks, drawn.deliveries, drawn.copies, drawn.identical, strict=True)
    tasks = tuple(
        replace(task, delivery=delivery, copies=copies, identical=identical and bool(copies) and plain)
        for task, delivery, copies, identical in parts
    )
    return replace(scenario, tasks=tasks, claim_ahead=drawn.claim_ahead)


def _place(scenario: Scenario) -> Scenario:
    """Return the scenario with a placed keyspace."""
    rng = Random(f"directed {scenario.seed}")
    placement = rng.choice(WAYS)
    keys = {task.key for task in scenario.tasks}
    if scenario.jobs is not None:
        keys |= {call.key for call in scenario.jobs.calls}
    pins = draw_pins(rng, scenario.names, keys, TROUBLE) if placement.pins else ()
    # A store that lost its data no longer knows which workers have worker queues.
    forgets = any(fault.kind in (Kind.WIPE, Kind.FAIL_OVER) for fault in scenario.faults)
    away = rng.choice(scenario.names[1:]) if rng.random() < 0.4 and not forgets else ""
    return replace(scenario, placement=placement, pins=pins, away=away)


def _draw_with_jobs(seed: int, kinds: Collection[Kind], points: Sequence[Point], *, deaf: bool) -> Scenario:
    scenario = _draw_plain(seed, kinds, points, deaf=deaf)
    # Tasks are drawn in other worlds; here a few of them are in the way of a handover.
    tasks, jobs = scenario.tasks[::TASKS_BESIDE_JOBS], draw_jobs(seed, scenario.names, scenario.slots, TROUBLE)
    rng = Random(f"slow {seed}")
    if {Kind.JOIN, Kind.LEAVE} <= set(kinds) and rng.random() < SLOW_WORLDS:
        return _slow(rng, scenario, jobs)
    return replace(scenario, tasks=tasks, jobs=jobs)


def _slow(rng: Random, scenario: Scenario, jobs: Jobs) -> Scenario:
    """Return the scenario with slow tasks and sound jobs, and with no faults but workers that join and leave."""
    calls = tuple(replace(call, lives=(), seconds=min(call.seconds, 1.0)) for call in jobs.calls)
    tasks = tuple(replace(task, seconds=SLOW) if rng.random() < 0.4 else task for task in scenario.tasks)
    joins = Fault(rng.uniform(8, TROUBLE), Kind.JOIN, number=rng.randint(1, 3))
    leaves = Fault(rng.uniform(8, TROUBLE), Kind.LEAVE, rng.choice(scenario.names), seconds=SLOW + 15)
    faults = tuple(sorted((joins, leaves), key=lambda fault: fault.at))
    calm = replace(scenario, losses=0.0, broker_losses=0.0, deaf=False)
    return replace(calm, tasks=tasks, faults=faults, jobs=Jobs(calls))


def _draw_plain(seed: int, kinds: Collection[Kind], points: Sequence[Point], *, deaf: bool) -> Scenario:
    rng = Random(seed)
    names = NAMES[: rng.choice((2, 3, 3, 3, 4, 5))]
    slots = rng.choice((4, 6, 6, 8))
    likely = [kind for kind in kinds if kind in LIKELY]
    number = rng.randint(1, 6) if likely else 0
    struck = sorted((_fault(rng, names, likely, points) for _ in range(number)), key=lambda fault: fault.at)
    if any(fault.kind is Kind.JOIN for fault in struck):
        slots = 40
    sent = tuple(_tasks(rng, slots))
    return Scenario(
        seed=seed,
        names=names,
        weights=(1,) * 5 if rng.random() < 0.7 else tuple(rng.randint(1, 3) for _ in range(5)),
        slots=slots,
        concurrency=rng.randint(1, 3),
        losses=rng.choice((0.0, 0.01, 0.03)),
        broker_losses=rng.choice((0.0, 0.0, 0.02, 0.05)),
        deaf=deaf or rng.random() < 0.05,
        founded=rng.random() < 0.8,
        faults=tuple(struck),
        tasks=sent,
    )


def _fault(rng: Random, names: str, kinds: Collection[Kind], points: Sequence[Point]) -> Fault:
    kind = rng.choices(list(kinds), [LIKELY[kind] for kind in kinds])[0]
    at, seconds = rng.uniform(4, TROUBLE), rng.choice(LENGTHS) * rng.uniform(0.8, 1.2)
    if kind is Kind.JOIN:
        return Fault(at, kind, number=rng.randint(5, 15))
    if kind is Kind.OUTAGE:
        return Fault(at, kind, seconds=seconds)
    if kind in (Kind.DEAF, Kind.WIPE, Kind.RESTART, Kind.FAIL_OVER):
        return Fault(at, kind)
    point = rng.choice((Point.NOW, Point.NOW, *points))
    if kind is Kind.CRASH:
        return Fault(at, kind, rng.choice(names), point, rng.choice((0.1, 0.1, 3.0, 20.0)), rng.random() < 0.5)
    if kind is Kind.LEAVE:
        return Fault(at, kind, rng.choice(names), point, rng.uniform(3, 15))
    return Fault(at, kind, rng.choice(names), point, seconds)


def _hangs(rng: Random, names: str) -> Iterator[Fault]:
    # Drawn separately, as below.
    if rng.random() < LOOP_HANGS:
        yield Fault(rng.uniform(4, TROUBLE), Kind.HANG, rng.choice(names), seconds=rng.choice(LENGTHS))


def _breaks(rng: Random, slots: int) -> Iterator[Fault]:
    if rng.random() < SLOT_BREAKS:
        yield Fault(rng.uniform(0, TROUBLE), Kind.BROKEN, seconds=rng.choice(LENGTHS), number=rng.randrange(slots))


def _broker_faults(rng: Random) -> Iterator[Fault]:
    # Drawn separately, so that a seed produces the same world as before this fault was added.
    if rng.random() < BROKER_GOES_BACK:
        yield Fault(rng.uniform(4, TROUBLE), Kind.BROKER_BACK)
    if rng.random() < BROKER_GOES_BACK / 4:
        yield Fault(rng.uniform(4, TROUBLE), Kind.BROKER_BACK)


def _tasks(rng: Random, slots: int) -> list[Task]:
    keys = min(slots, 8) + rng.randint(0, 4)
    number = rng.randint(5, 40)
    times = sorted(_when(rng) for _ in range(number))
    sent: dict[int, int] = {}
    tasks = []
    for at in times:
        key = min(rng.randrange(keys), rng.randrange(keys))  # some keys are busier than others
        sent[key] = n = sent.get(key, 0) + 1
        tasks.append(_task(rng, at, key, n))
    return tasks


def _when(rng: Random) -> float:
    # Messages come in bursts: before the workers start, and at intervals.
    return rng.choice((0.0, 10.0, 20.0, 30.0)) + rng.uniform(0, 0.1) if rng.random() < 0.4 else rng.uniform(0, TROUBLE)


def _task(rng: Random, at: float, key: int, n: int) -> Task:
    return Task(
        at=at,
        key=key,
        n=n,
        priority=rng.choice((0,) * 9 + (3,)),
        countdown=rng.uniform(0.1, 12) if rng.random() < 0.06 else 0.0,
        seconds=12.0 if rng.random() < 1 / 40 else rng.choice(SECONDS) * rng.uniform(0.5, 1.5),
        ends=tuple(rng.choice(OUTCOMES) for _ in range(2)),
    )
