"""Removes one rule of the protocol in the simulator, and checks that a promise breaks."""

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
    """A rule, the replacements that remove it, and the promises of which one then breaks."""

    name: str
    without: tuple[tuple[Any, str, Any], ...]
    breaks: frozenset[Invariant]
    first: int = 0
    """Where the search begins: a seed at or before the first one that finds the break."""
    deaf: bool = False
    kinds: tuple[Kind, ...] = tuple(Kind)
    held: bool = False
    """Whether slots are held at the broker by connections."""
    once: bool = False
    """Whether tasks use the ledger of runs."""
    losses: float | None = None
    """None: drawn from the seed."""

    def __str__(self) -> str:
        return self.name

    def scenario(self, seed: int, *, placed: bool, jobs: bool) -> Scenario:
        held, once = self.held, self.once
        drawn = draw(seed, deaf=self.deaf, kinds=self.kinds, placed=placed, jobs=jobs, held=held, once=once)
        return drawn if self.losses is None else replace(drawn, losses=self.losses)


def rule(name: str, *without: Any, breaks: Collection[Invariant], **options: Any) -> Rule:
    three = tuple(tuple(without[at : at + 3]) for at in range(0, len(without), 3))
    return Rule(name, three, frozenset(breaks), **options)


def broken_without(rule: Rule, monkeypatch: pytest.MonkeyPatch, *, placed: bool, jobs: bool = False) -> None:
    """Check that without the rule some seed breaks one of its promises."""
    for part, name, instead in rule.without:
        monkeypatch.setattr(part, name, instead)
    broken = set[Invariant]()
    for seed in range(rule.first, rule.first + SEEDS):
        outcome = live(rule.scenario(seed, placed=placed, jobs=jobs))
        if isinstance(outcome, Failure):
            broken.add(outcome.invariant)
        if broken & rule.breaks:
            return
    raise AssertionError(f"{SEEDS} seeds found only {broken}")
