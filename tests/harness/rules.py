"""A rule that the simulator can judge, taken away: which promise then breaks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import pytest
from simulator.invariants import Invariant
from simulator.scenario import Kind, Scenario, draw
from simulator.shrink import Failure, live

SEEDS = 400


@dataclass(frozen=True)
class Rule:
    """A rule, what stands in its place, and what then breaks first."""

    name: str
    without: tuple[tuple[Any, str, Any], ...]
    breaks: frozenset[Invariant]
    first: int = 0
    """A seed at or before the first that finds it: the search begins there."""
    deaf: bool = False
    kinds: tuple[Kind, ...] = tuple(Kind)
    held: bool = False
    """Whether slots are held at the broker by connections."""
    losses: float | None = None
    """None: as the seed says."""

    def __str__(self) -> str:
        return self.name

    def scenario(self, seed: int, *, placed: bool) -> Scenario:
        drawn = draw(seed, deaf=self.deaf, kinds=self.kinds, placed=placed, held=self.held)
        return drawn if self.losses is None else replace(drawn, losses=self.losses)


def rule(name: str, *without: Any, breaks: Collection[Invariant], **options: Any) -> Rule:
    three = tuple(tuple(without[at : at + 3]) for at in range(0, len(without), 3))
    return Rule(name, three, frozenset(breaks), **options)


def broken_without(rule: Rule, monkeypatch: pytest.MonkeyPatch, *, placed: bool) -> None:
    """See that in some world without the rule one of its promises is broken."""
    for part, name, instead in rule.without:
        monkeypatch.setattr(part, name, instead)
    broken = set[Invariant]()
    for seed in range(rule.first, rule.first + SEEDS):
        outcome = live(rule.scenario(seed, placed=placed))
        if isinstance(outcome, Failure):
            broken.add(outcome.invariant)
        if broken & rule.breaks:
            return
    raise AssertionError(f"{SEEDS} seeds found only {broken}")
