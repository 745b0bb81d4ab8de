"""A picture of a run: each slot's owner over time, with marks for the faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_sticky.cli.verify.faults.deaths import Kill
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.errors import MissingDependency

MISSING = "--picture needs matplotlib: pip install 'celery-sticky[verify]'"
FORMATS = (".svg", ".png")
Spell = tuple[str, int, float, float]
"""Worker, slot, and start and end of the period in which the slot was open there, in seconds since the load began."""


def spells(outcome: VerifyRun) -> list[Spell]:
    """Return the periods in which each worker had each slot open."""
    began = outcome.timeline.began
    killed = {done.fault.workers[0]: done.since for done in outcome.timeline.done if isinstance(done.fault, Kill)}
    open_: dict[tuple[str, int], int] = {}
    found: list[Spell] = []

    def close(worker: str, slot: int, at: int) -> None:
        since = open_.pop((worker, slot))
        found.append((worker, slot, (since - began) / 1e9, (at - began) / 1e9))

    last = began
    for event in sorted(outcome.slot_events, key=lambda event: event.at):
        worker, last = short(event.worker), event.at
        if event.what == "gained":
            for other in [name for name, slot in open_ if slot == event.slot and name != worker]:
                death = killed.get(other, event.at)  # it recorded no loss: it was killed or paused
                close(other, event.slot, min(death, event.at) if death > open_[other, event.slot] else event.at)
            open_.setdefault((worker, event.slot), event.at)
        elif (worker, event.slot) in open_:
            close(worker, event.slot, event.at)
    for worker, slot in list(open_):
        close(worker, slot, last)
    return found


def paint(outcome: VerifyRun, path: Path) -> None:
    """Write the picture.

    Raises:
        MissingDependency: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(MISSING) from error
    drawn = spells(outcome)
    workers = sorted({worker for worker, *_ in drawn}, key=lambda name: (len(name), name))
    figure = Figure(figsize=(14, 7), layout="constrained")
    axes = figure.subplots()
    palette = colormaps["tab20"]
    for index, worker in enumerate(workers):
        bars = [(slot, since, until - since) for name, slot, since, until in drawn if name == worker]
        places, starts, lengths = zip(*bars, strict=True)
        axes.barh(places, lengths, left=starts, height=1.0, color=palette(index % 20), label=worker)
    _mark(axes, outcome)
    axes.set(xlabel="seconds", ylabel="slot", ylim=(-0.5, outcome.slots - 0.5), xlim=(0, None))
    axes.set_title(_title(outcome), pad=90)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", title="owner")
    figure.savefig(path)


def _mark(axes: Any, outcome: VerifyRun) -> None:
    began = outcome.timeline.began
    for done in outcome.timeline.done:
        since, until = (done.since - began) / 1e9, (done.until - began) / 1e9
        axes.axvspan(since, until, color="black", alpha=0.08)
        axes.axvline(since, color="black", linewidth=0.8)
        axes.annotate(
            str(done.fault),
            (since, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            rotation=60,
            fontsize=7,
        )


def _title(outcome: VerifyRun) -> str:
    run_options = outcome.run_options
    return f"Slots by owner: {run_options.pool}, {run_options.workers} workers at the start, seed {run_options.seed}"
