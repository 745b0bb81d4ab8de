"""What a run found: as JSON, and as tables for people."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.tables import dash, table
from celery_sticky.cli.verify.checker import UNEXPLAINED, Findings
from celery_sticky.cli.verify.figures import measure
from celery_sticky.cli.verify.run import VerifyRun
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.timeline import Done

PACKAGES = ("celery-sticky", "celery", "kombu", "redis")
TITLES = {
    Mode.STICKY: "celery-sticky",
    Mode.QUEUE: "plain Celery, one queue",
    Mode.HASH: "plain Celery, one queue for each worker by hash",
}
NOTES = (
    "not checked for order: keys of tasks with an ETA and of tasks that retry (eta0…, retry0…), which take their place "
    "when they are due; they are checked for everything else"
)


def facts(outcome: VerifyRun, findings: Findings) -> dict[str, Any]:
    """Return all that was found."""
    began = outcome.timeline.began
    return {
        "mode": str(outcome.run_options.mode),
        "ok": findings.ok,
        "findings": findings.figures(),
        "figures": measure(outcome) | {"jobs": None if findings.jobs is None else findings.jobs.figures()},
        "faults": [_fault(done, began) for done in outcome.timeline.done],
        "faults_mixed_in": list(outcome.plan.kinds),
        "faults_left_out": dict(outcome.plan.left_out),
        "faults_not_reached": list(outcome.timeline.skipped),
        "restarts_after_poison": len(outcome.timeline.restarts),
        "buried": sorted(set(outcome.buried.values())),
        "zombies": findings.zombie_lines(),
        "accusations": findings.accusations(),
        "seed": outcome.run_options.seed,
        "options": {
            "pool": outcome.run_options.pool,
            "concurrency": outcome.run_options.concurrency,
            "workers": outcome.run_options.workers,
            "keys": outcome.run_options.keys,
            "rate": outcome.run_options.rate,
            "seconds": outcome.run_options.seconds,
            "slots": outcome.slots,
            "lease_ttl": outcome.run_options.ttl,
            "jobs": outcome.run_options.jobs,
            "placed": outcome.run_options.placed,
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what took part on this side."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def _fault(done: Done, began: int) -> dict[str, Any]:
    return {
        "fault": done.step.fault,
        "workers": list(done.step.workers),
        "starts": list(done.step.names),
        **done.step.detail,
        "at": round((done.since - began) / 1e9, 2),
        "until": round((done.until - began) / 1e9, 2),
        "note": done.note,
    }


def draw(found: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Draw what was found."""
    findings = found["findings"]
    title = TITLES[Mode(found["mode"])]
    word = Text("clean", style="bold green") if found["ok"] else Text("broken promises", style="bold red")
    yield Text.assemble(f"\nVerdict on {title}, from the history that every process wrote down: ", word)
    made = table("", "", "")
    made.show_header = False
    for name, value, good, comment in _rows(findings):
        mark = Text("✓", style="green") if good else Text("✗", style="bold red")
        made.add_row(mark, name, Text.assemble((str(value), "bold"), f"  {comment}" if comment else ""))
    yield made
    yield from (Text(f"  {text}", style="red") for text in found["accusations"])
    yield from (Text(f"  zombie: {text}", style="yellow") for text in found["zombies"][:5])
    yield _figures(found["figures"])
    if found["figures"]["jobs"] is not None:
        yield from _job_figures(found["figures"]["jobs"])
    for fault, why in found["faults_left_out"].items():
        yield Text(f"left out: {fault}: {why}", style="yellow")
    for step in found["faults_not_reached"]:
        yield Text(f"not reached in time: {step}", style="yellow")
    if {"eta", "retry"} & set(found["faults_mixed_in"]):
        yield Text(NOTES)
    yield Text(f"seed {found['seed']}; " + ", ".join(f"{name} {number}" for name, number in found["versions"].items()))


def _rows(findings: Mapping[str, Any]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "tasks", findings["tasks"], True, "accepted by the broker"
    meaning = {
        "lost": "accepted, never run, and nowhere at the broker",
        "overlaps": "two runs of a key at one time",
        "out_of_order": "first runs of a key",
        "stale_epoch": "a run after a higher epoch was seen",
        "stuck": "at the broker, not run in time",
    }
    for name, comment in meaning.items():
        yield name.replace("_", " "), findings[name], not findings[name], comment
    yield (
        "forgotten",
        findings["forgotten"],
        True,
        "accepted just before the broker went back to older data: it lost them",
    )
    fenced = "of processes paused inside a task; the later run's epoch is higher, a token fences the earlier one"
    yield "zombie overlaps", findings["zombie_overlaps"], True, fenced
    yield "zombie starts", findings["zombie_starts"], True, "of processes paused on their way into a task, as above"
    causes = findings["duplicates"]
    text = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    yield "run again", sum(causes.values()), UNEXPLAINED not in causes, text
    if findings["placed"] is not None:
        yield from _placed_rows(findings["placed"])
    if findings["jobs"] is not None:
        yield from _job_rows(findings["jobs"])


def _placed_rows(findings: Mapping[str, int]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "moves", findings["changes"], True, "changes of members, and of the pins of single keys"
    moved = "their messages changed the queue: that is not promised"
    yield "out of order by moves", findings["out_of_order_by_moves"], True, moved
    yield "refused", findings["refused"], True, "sendings: nobody accepted these"
    yield "buried unpinned", findings["buried_unpinned"], True, "their keys belonged nowhere"
    meaning = {
        "refused_in_vain": "sending was refused, though the key belonged to a worker",
        "refused_and_run": "sending was refused, and it ran",
        "astray": "a run in a worker to which the key did not belong",
        "pins_lost_untold": "a worker was not told of a pin that it has lost",
    }
    for name, comment in meaning.items():
        yield name.replace("_", " "), findings[name], not findings[name], comment


def _job_rows(findings: Mapping[str, int]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "jobs", findings["wanted"], True, "dispatched, to run until they are stopped"
    meaning = {
        "overlaps": "two runs of a job at one time",
        "stale_epoch": "a job started after a higher epoch was seen",
        "late": "did not run for longer than a takeover and a start take",
        "lost": "wanted, and did not run at the end",
        "needless_starts": "its slot had not moved, and no fault had met its worker",
    }
    for name, comment in meaning.items():
        yield f"job {name.replace('_', ' ')}", findings[name], not findings[name], comment
    yield "job zombie overlaps", findings["zombie_overlaps"], True, "of processes paused with their jobs, as above"


def _figures(figures: Mapping[str, Any]) -> RenderableType:
    made = table("", "p50", "p99", "max", "", right=("p50", "p99", "max"))
    meaning = {
        "takeover_seconds": "from a worker's death until its slots were open elsewhere, or its placed keys ran there",
        "handover_seconds": "a slot that moves in order is with nobody",
        "unmoved_pause_seconds": "no slot that stayed ran anything",
        "latency_seconds": "from acceptance to first start",
    }
    for name, comment in meaning.items():
        one = figures[name]
        made.add_row(name.replace("_", " "), *(dash(one.get(part)) for part in ("p50", "p99", "max")), comment)
    least = f"the minimum is {dash(figures['moved_minimum'])}"
    made.add_row("moved share", dash(figures["moved_share"]), "", "", f"of the slots, in joins, leaves, kills; {least}")
    made.add_row("throughput", dash(figures["throughput"]), "", "", "tasks a second")
    return made


def _job_figures(figures: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("jobs not running, s", "times", "p50", "p99", "max", right=("times", "p50", "p99", "max"))
    for cause, one in figures["not_running_seconds"].items():
        made.add_row(cause, str(one["count"]), *(dash(one[part]) for part in ("p50", "p99", "max")))
    yield made
    starts = f"{figures['starts']} starts of jobs, the minimum is {figures['starts_minimum']}"
    yield Text(f"{starts}; without running for {figures['limit_seconds']:g} s at most is allowed")
