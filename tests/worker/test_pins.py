"""Pinned keys with real workers."""

from __future__ import annotations

from collections.abc import Callable

from harness.directed_fleet import DirectedFleet

Directed = Callable[..., DirectedFleet]


def test_a_pinned_key_runs_where_it_is_pinned_and_nowhere_else(directed: Directed) -> None:
    fleet = directed("pinned")
    fleet.up("a", "b")
    for i in range(8):
        fleet.on("ab"[i % 2], "pin", f"k{i}", "pinned")
    for _ in range(3):
        for i in range(8):
            fleet.call(f"k{i}")
    fleet.wait_finished()
    for i in range(8):
        assert fleet.ran(f"k{i}") == ["ab"[i % 2]] * 3
    assert fleet.judge().ok, fleet.judge().describe()
