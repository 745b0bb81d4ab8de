"""`make simulate`: simulate many seeds, or one of them with its trace."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import click

from simulator.run import Totals, cores, live_all
from simulator.scale import measure
from simulator.scenario import Scenario, draw
from simulator.shrink import Failure, live, shrink

EVERY = 60.0
"""Seconds between lines about how far it is."""


@click.command()
@click.option("--seeds", default=2000, show_default=True, help="How many seeds.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--processes", default=cores(), help="How many processes; one for each core if not given.")
@click.option("--seconds", default=float("inf"), help="Stop after so long, however many seeds are left.")
@click.option("--seed", type=int, help="Only this one, with its trace.")
@click.option("--placed/--plain", default=None, help="Placed or plain keyspaces; default: as each seed says.")
@click.option("--jobs", is_flag=True, help="Worlds with jobs, in plain keyspaces if not --placed.")
@click.option("--held", is_flag=True, help="A broker whose slots are held by connections, instead of fenced by epochs.")
@click.option("--once", is_flag=True, help="Tasks that run at most once or are deduplicated, and messages sent twice.")
@click.option("--scale", is_flag=True, help="Instead: figures of a keyspace of 1,000 members and 16,384 slots.")
def main(
    seeds: int,
    first: int,
    processes: int,
    seconds: float,
    seed: int | None,
    placed: bool | None,
    jobs: bool,
    held: bool,
    once: bool,
    scale: bool,
) -> None:
    """Simulate workers, a store and a broker under random faults; exit with 1 if a promise was broken."""
    if once and (jobs or held):
        raise click.UsageError("--once goes with --plain and --placed alone")
    scenario = partial(draw, placed=placed, jobs=jobs, held=held, once=once)
    if scale:
        for line in measure():
            click.echo(line)
    elif seed is not None:
        sys.exit(_replay(scenario(seed)))
    else:
        sys.exit(_simulate(first, seeds, processes, seconds, scenario))


def _replay(scenario: Scenario) -> int:
    outcome = live(scenario)
    if isinstance(outcome, Failure):
        return _report(outcome)
    click.echo("\n".join(outcome.lines(len(outcome.trace))))
    click.echo(f"seed {scenario.seed}: no promise was broken in {outcome.now:.1f} s")
    return 0


def _simulate(first: int, seeds: int, processes: int, seconds: float, scenario: Callable[[int], Scenario]) -> int:
    begun = told = time.monotonic()
    totals = Totals()
    for totals, failure in live_all(first, seeds, processes, seconds, scenario):
        if failure is not None:
            return _report(failure)
        if time.monotonic() > told + EVERY:
            told = time.monotonic()
            click.echo(_figures(totals, told - begun))
    click.echo(f"{_figures(totals, time.monotonic() - begun)}: no promise was broken")
    return 0


def _figures(totals: Totals, seconds: float) -> str:
    return (
        f"{totals.seeds:,} seeds in {seconds:.0f} s ({totals.seeds / seconds:.0f} a second): {totals.events:,} events, "
        f"{totals.faults:,} faults, {totals.tasks:,} tasks in {totals.runs:,} runs, {totals.evictions:,} evictions, "
        f"{totals.seconds / 3600:.0f} h of virtual time"
    )


def _report(failure: Failure) -> int:
    click.echo(f"seed {failure.scenario.seed} broke {failure.invariant}; cutting it down …")
    click.echo(str(shrink(failure)))
    world = "--plain" if failure.scenario.placement is None else "--placed"
    world += " --jobs" if failure.scenario.jobs is not None else ""
    world += " --held" if failure.scenario.held else ""
    world += " --once" if failure.scenario.claim_ahead is not None else ""
    click.echo(f"again: make simulate SIMULATE_ARGS='{world} --seed {failure.scenario.seed}'")
    return 1


if __name__ == "__main__":
    main(prog_name="make simulate SIMULATE_ARGS=…")
