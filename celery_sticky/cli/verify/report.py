"""The report of a run: JSON for machines, tables for people."""

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
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.timeline import Done

PACKAGES = ("celery-sticky", "celery", "kombu", "redis")
TITLES = {
    Mode.STICKY: "celery-sticky",
    Mode.QUEUE: "plain Celery, one queue",
    Mode.HASH: "plain Celery, one queue for each worker by hash",
}
NOTES = (
    "not checked for order: keys of tasks with an ETA and of tasks that retry (eta0…, retry0…), because these tasks "
    "take their place when they are due; all other checks apply to them"
)


def facts(outcome: VerifyRun, findings: Findings) -> dict[str, Any]:
    """Return all findings as they appear in the JSON."""
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
            "server": None if outcome.run_options.broker is not None else str(outcome.run_options.server),
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
    """Return the versions of Python and of the packages in use."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def _fault(done: Done, began: int) -> dict[str, Any]:
    return {
        "fault": done.fault.name,
        "workers": list(done.fault.workers),
        "starts": list(done.fault.starts),
        **done.fault.detail,
        "at": round((done.since - began) / 1e9, 2),
        "until": round((done.until - began) / 1e9, 2),
        "note": done.note,
    }


def draw(found: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Draw the findings."""
    findings = found["findings"]
    title = TITLES[Mode(found["mode"])]
    word = Text("clean", style="bold green") if found["ok"] else Text("broken promises", style="bold red")
    yield Text.assemble(f"\nVerdict on {title}, from the history recorded by every process: ", word)
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
        yield Text(f"fault left out: {fault}: {why}", style="yellow")
    for step in found["faults_not_reached"]:
        yield Text(f"fault not reached in time: {step}", style="yellow")
    if {"eta", "retry"} & set(found["faults_mixed_in"]):
        yield Text(NOTES)
    yield Text(f"seed {found['seed']}; " + ", ".join(f"{name} {number}" for name, number in found["versions"].items()))


def _rows(findings: Mapping[str, Any]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "tasks", findings["tasks"], True, "accepted by the broker"
    meaning = {
        "lost": "accepted, never run, and no longer at the broker",
        "overlaps": "two runs of a key at the same time",
        "out_of_order": "among the first runs of a key's tasks",
        "stale_epoch": "a run after another with a higher epoch",
        "stuck": "at the broker, but not run in time",
    }
    for name, comment in meaning.items():
        yield name.replace("_", " "), findings[name], not findings[name], comment
    yield (
        "forgotten",
        findings["forgotten"],
        True,
        "accepted and then lost by the broker when it returned to older data",
    )
    fenced = "by processes paused inside a task; the later run has a higher epoch, so a token fences the earlier one"
    yield "zombie overlaps", findings["zombie_overlaps"], True, fenced
    yield "zombie starts", findings["zombie_starts"], True, "by processes paused just before a task, fenced likewise"
    causes = findings["duplicates"]
    text = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    yield "run again", sum(causes.values()), UNEXPLAINED not in causes, text
    if findings["placed"] is not None:
        yield from _placed_rows(findings["placed"])
    if findings["jobs"] is not None:
        yield from _job_rows(findings["jobs"])


def _placed_rows(findings: Mapping[str, int]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "moves", findings["changes"], True, "changes of members, and of the pins of keys"
    moved = "their messages moved to another queue; order is not promised then"
    yield "out of order by moves", findings["out_of_order_by_moves"], True, moved
    yield "refused", findings["refused"], True, "sends that were not accepted"
    yield "buried unpinned", findings["buried_unpinned"], True, "no worker had pinned their keys"
    meaning = {
        "refused_in_vain": "sends refused although the key belonged to a worker",
        "refused_and_run": "sends refused, but the task ran",
        "astray": "runs in a worker to which the key did not belong",
        "pins_lost_untold": "lost pins of which the worker was not told",
    }
    for name, comment in meaning.items():
        yield name.replace("_", " "), findings[name], not findings[name], comment


def _job_rows(findings: Mapping[str, int]) -> Iterable[tuple[str, Any, bool, str]]:
    yield "jobs", findings["wanted"], True, "dispatched, to run until stopped"
    meaning = {
        "overlaps": "two runs of a job at the same time",
        "stale_epoch": "a job started after another with a higher epoch",
        "late": "not running for longer than a takeover and a start take",
        "lost": "dispatched, but not running at the end",
        "needless_starts": "started again although the slot had not moved, and neither a fault had hit the worker nor "
        "the first offence of a bad job its process",
    }
    for name, comment in meaning.items():
        yield f"job {name.replace('_', ' ')}", findings[name], not findings[name], comment
    yield "notes lost", findings["notes_lost"], not findings["notes_lost"], "notifications that no run of their job got"
    unseen = "jobs that are bad on purpose, without a failure or quarantine in their records"
    yield "bad jobs unseen", findings["bad_unseen"], not findings["bad_unseen"], unseen
    yield "bad jobs left", findings["bad_left"], not findings["bad_left"], "not stopped although told to"
    yield "job zombie overlaps", findings["zombie_overlaps"], True, "by processes paused with jobs, fenced likewise"


def _figures(figures: Mapping[str, Any]) -> RenderableType:
    made = table("", "p50", "p99", "max", "", right=("p50", "p99", "max"))
    meaning = {
        "takeover_seconds": "from a worker's death until its slots were open elsewhere, or its placed keys ran there",
        "handover_seconds": "no worker has a slot that is being handed over",
        "unmoved_pause_seconds": "no slot that did not move ran a task",
        "latency_seconds": "from acceptance to first start",
    }
    for name, comment in meaning.items():
        one = figures[name]
        made.add_row(name.replace("_", " "), *(dash(one.get(part)) for part in ("p50", "p99", "max")), comment)
    least = f"the minimum is {dash(figures['moved_minimum'])}"
    made.add_row("moved share", dash(figures["moved_share"]), "", "", f"of the slots, in joins, leaves, kills; {least}")
    made.add_row("throughput", dash(figures["throughput"]), "", "", "tasks per second")
    return made


def _job_figures(figures: Mapping[str, Any]) -> Iterable[RenderableType]:
    made = table("jobs not running, s", "times", "p50", "p99", "max", right=("times", "p50", "p99", "max"))
    for cause, one in figures["not_running_seconds"].items():
        made.add_row(cause, str(one["count"]), *(dash(one[part]) for part in ("p50", "p99", "max")))
    yield made
    starts = f"{figures['starts']} starts of jobs; the minimum is {figures['starts_minimum']}"
    wait = f"without waits for a CPU, of {figures['waited_for_cpu_seconds']:g} s at most"
    yield Text(f"{starts}; a job may be not running for {figures['limit_seconds']:g} s, {wait}")
    bad = f"{figures['bad_jobs']} bad jobs in {figures['bad_starts']} starts"
    yield Text(
        f"{bad}; {figures['first_offences']} first offences cost a process with good jobs; notes: {figures['notes']}"
    )
