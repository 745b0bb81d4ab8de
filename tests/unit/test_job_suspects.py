"""Which job ends the host: hosts and jobs under virtual time, and what is held against whom."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from celery_sticky.jobs.keeper.suspects import CHARGE_LAST, FORGET, LONE_STARTS, STEP, YOUNG, Suspects, Who


@dataclass
class Bench:
    """A host that jobs end, and is there again a moment later."""

    jobs: list[str]
    kills: dict[str, float] = field(default_factory=dict)
    """Name -> seconds after the start of its start when it ends the host."""
    slow: dict[str, float] = field(default_factory=dict)
    """Name -> seconds its start takes."""
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.suspects = Suspects()
        self.fresh = set(self.jobs)
        self.attempts = dict.fromkeys(self.jobs, 0)
        self.given_up: set[str] = set()
        self.began: dict[str, float] = {}
        self.running: set[str] = set()
        self.deaths: list[float] = []
        self.charged: dict[str, int] = {}
        self.asked: dict[str, float] = {}

    def run(self, seconds: float, most_attempts: int = 5) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self.start(most_attempts)
            for name, began in list(self.began.items()):
                if name not in self.running and self.now >= began + self.slow.get(name, 0.05):
                    self.suspects.started(who(name))
                    self.running.add(name)
                    self.fresh.discard(name)
            if any(self.now >= self.began[name] + after for name, after in self.kills.items() if name in self.began):
                self.die(most_attempts)

    def start(self, most_attempts: int) -> None:
        waiting = [name for name in self.jobs if name not in self.began and name not in self.given_up]
        may = []
        for name in waiting:
            last = name in self.fresh and 0 < self.attempts[name] >= most_attempts - LONE_STARTS
            at = self.suspects.ask(who(name), self.now, last_chance=last)
            may += [name] if at <= self.now else []
        for name in may:
            self.attempts[name] += 1
            self.began[name] = self.now
            self.suspects.began(who(name), self.now)

    def die(self, most_attempts: int = 5, *, killed: bool = False) -> None:
        self.deaths.append(self.now)
        self.suspects.host_ended(self.now, killed=killed)
        for name in self.began:
            if charge := self.suspects.charged(who(name)):
                self.charged[name] = charge.count
                ready = name in self.fresh and self.attempts[name] >= most_attempts
                if ready and charge.lone >= LONE_STARTS:
                    self.given_up.add(name)
        self.began.clear()
        self.running.clear()
        self.now += 1.0  # until the next host is there


def who(name: str) -> Who:
    return "ks", name


def names(count: int) -> list[str]:
    return [f"j{n}" for n in range(count)]


def test_a_fresh_job_that_ends_the_host_is_given_up_and_its_neighbours_are_not() -> None:
    bench = Bench(names(40), kills={"j17": 0.0})
    bench.run(600)
    assert bench.given_up == {"j17"}
    assert bench.running == set(bench.jobs) - {"j17"}
    assert bench.charged.keys() == {"j17"}
    assert len(bench.deaths) < 14


@pytest.mark.parametrize("seed", range(30))
def test_whatever_ends_the_host_no_innocent_fresh_job_is_given_up(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(names(chance.choice((2, 5, 30))))
    guilty = chance.sample(bench.jobs, chance.choice((1, 1, 2)))
    bench.kills = {name: chance.choice((0.0, 0.3, 3.0, 20.0)) for name in guilty}
    bench.slow = {name: chance.choice((0.05, 0.05, 0.05, 2.0, 30.0)) for name in bench.jobs}
    bench.run(3600, chance.choice((2, 3, 5)))
    assert bench.given_up <= set(guilty)
    late = [at for at in bench.deaths if at > bench.now - 1200]
    assert len(late) <= 3 * len(guilty), "they are found out, and wait longer each time"
    assert set(bench.jobs) - set(guilty) - bench.running <= set(bench.jobs if bench.now - bench.deaths[-1] < 90 else ())


@pytest.mark.parametrize("after", [1.0, 5.0, 25.0, 50.0])
def test_a_job_that_ends_the_host_some_time_after_its_start_is_found_and_waits_longer_each_time(after: float) -> None:
    bench = Bench(names(50), kills={"j3": after})
    bench.run(2 * 3600)
    assert bench.charged["j3"] > 5
    assert len([at for at in bench.deaths if at > bench.now - 1800]) <= 1800 / CHARGE_LAST + 1
    assert max(bench.charged.get(name, 0) for name in bench.jobs if name != "j3") <= 1


def test_a_host_that_dies_once_costs_no_job_more_than_a_moment() -> None:
    bench = Bench(names(1000))
    bench.run(5)
    bench.die()
    bench.run(3)
    assert bench.running == set(bench.jobs)
    assert bench.charged == {}


def test_a_death_that_we_have_caused_is_nobodys_fault() -> None:
    bench = Bench(["j0"], slow={"j0": 5.0})
    bench.run(1)
    bench.die(killed=True)
    assert bench.suspects.charged(who("j0")) is None
    bench.start(5)
    assert bench.began.keys() == {"j0"}


def test_a_suspect_starts_when_nothing_else_does_and_others_wait_for_it() -> None:
    suspects = Suspects()
    suspects.began(who("bad"), 0.0)
    suspects.host_ended(1.0, killed=False)
    charge = suspects.charged(who("bad"))
    assert charge is not None and suspects.ask(who("bad"), 1.5) == charge.until == 2.0
    assert suspects.ask(who("new"), 2.0) == 2.0, "who is not suspected goes first"
    suspects.began(who("new"), 2.0)
    assert suspects.ask(who("bad"), 2.5) > 2.5
    suspects.started(who("new"))
    assert suspects.ask(who("bad"), 2.7) == 2.7
    assert suspects.ask(who("newer"), 2.7) > 2.7
    suspects.began(who("bad"), 2.7)
    assert suspects.ask(who("newer"), 3.0) > 3.0
    suspects.started(who("bad"))
    assert suspects.ask(who("newer"), 3.2) == 3.2


def test_starts_that_never_cease_do_not_keep_a_suspect_waiting_for_ever() -> None:
    suspects, now = Suspects(), 2.0
    suspects.began(who("bad"), 0.0)
    suspects.host_ended(1.0, killed=False)
    for n in range(100):
        now += 0.1
        if suspects.ask(who(f"n{n}"), now) <= now:
            suspects.began(who(f"n{n}"), now)
        if n >= 3:
            suspects.started(who(f"n{n - 3}"))
        if suspects.ask(who("bad"), now) <= now:
            break
    assert now < 5.0


def test_a_start_beside_one_that_ran_a_short_while_is_no_lone_one() -> None:
    """Guards: a slow start is given up for what somebody else does to the host."""
    suspects = Suspects()
    for _ in range(5):
        suspects.began(who("late"), 17.5)
        suspects.started(who("late"))
        suspects.began(who("slow"), 19.5)
        suspects.host_ended(20.0, killed=False)
    charge = suspects.charged(who("slow"))
    assert charge is not None and (charge.count, charge.lone) == (5, 0)
    suspects.began(who("late"), 100.0)
    suspects.started(who("late"))
    assert suspects.ask(who("slow"), 102.0, last_chance=True) > 102.0
    assert suspects.ask(who("slow"), 100.0 + YOUNG, last_chance=True) == 100.0 + YOUNG


def test_what_is_long_past_is_forgotten() -> None:
    suspects = Suspects()
    for at in (0.0, 10.0):
        suspects.began(who("bad"), at)
        suspects.host_ended(at + 1.0, killed=False)
    later = 12.0 + FORGET
    assert suspects.ask(who("bad"), later) == later
    suspects.began(who("bad"), later)
    suspects.host_ended(later + 1.0, killed=False)
    charge = suspects.charged(who("bad"))
    assert charge is not None and charge.count == 1
