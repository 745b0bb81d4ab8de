"""`doctor`'s checks of members, jobs, tasks and the app's configuration."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from importlib.metadata import version
from typing import Any

from celery_sticky.cli.answers import ask, stall_text
from celery_sticky.cli.failures import failures, said
from celery_sticky.cli.job_counts import job_problems, quarantine, tally
from celery_sticky.cli.session import Session
from celery_sticky.drivers import find_driver
from celery_sticky.errors import StickyError
from celery_sticky.findings import Finding, note, wrong
from celery_sticky.jobs import misplaced
from celery_sticky.jobs.shown import Owners
from celery_sticky.keyed import KeySpec
from celery_sticky.keyspace import how_to_agree
from celery_sticky.ownership.view import View
from celery_sticky.stores import Reading
from celery_sticky.stores.jobs import JobCounts

DESTINATION = ("queue", "exchange", "routing_key")


def guarded(what: str, findings: Iterable[Finding]) -> Iterable[Finding]:
    """Yield the findings. A check that fails becomes a finding itself, so that the other checks still run."""
    try:
        yield from findings
    except failures() as error:
        yield wrong(f"{what}: {said(error)}")


def member_findings(session: Session, timeout: float) -> Iterable[Finding]:
    """Compare members with each other and with this app's configuration."""
    answered = set[str]()
    yield from guarded("workers cannot be asked", _answer_findings(session, timeout, answered))
    yield from guarded("ownership documents", _document_findings(session, answered))
    yield from guarded("revokes", _revoke_findings(session))


def _answer_findings(session: Session, timeout: float, answered: set[str]) -> Iterable[Finding]:
    # A broker without a driver is a finding already, and its transport may fail in ways of its own.
    known = find_driver(session.app.connection_for_read()) is not None
    answers = ask(session.app, None, timeout) if known else []
    names = Counter(name for name, _ in answers)
    answered.update(names)
    for name, count in names.items():
        if count > 1:
            yield wrong(f"{count} workers have the node name {name}: give each its own name with -n")
    for name, answer in answers:
        if (loop := answer.get("loop")) and loop["stalled"]:
            yield wrong(stall_text(name, loop["answer_age"], loop["stalled"]))


def _document_findings(session: Session, answered: Collection[str]) -> Iterable[Finding]:
    for keyspace, reading in session.read(session.keyspaces).items():
        if isinstance(reading, StickyError):
            yield wrong(f"keyspace {keyspace}: {said(reading)}")
        else:
            yield from _keyspace_findings(session, keyspace, reading, answered)


def _keyspace_findings(
    session: Session, keyspace: str, reading: Reading, answered: Collection[str]
) -> Iterable[Finding]:
    view = reading.view
    if view is None:
        yield note(f"keyspace {keyspace} has no document yet: the first worker writes it, or run `celery sticky init`")
        return
    if view.store_id != reading.store_id:
        yield wrong(f"keyspace {keyspace}: the document comes from another run of the store; workers will replace it")
    for member in view.members.values():
        silence = reading.silent.get(member.incarnation, 0.0)
        if silence > session.settings.lease_ttl and member.name not in answered:
            yield wrong(
                f"keyspace {keyspace}: {member.name} does not answer and has sent no heartbeat for {silence:.0f} s"
            )
        if member.stalled is not None and member.name not in answered:  # answers are reported already
            since, why = member.stalled
            yield wrong(f"keyspace {keyspace}: {stall_text(member.name, time.time() - since, why)}")
    yield from _view_findings(session, keyspace, view)


def _revoke_findings(session: Session) -> Iterable[Finding]:
    session.store(session.keyspaces[0]).revoked()  # all keyspaces share the revokes
    return ()


def _view_findings(session: Session, keyspace: str, view: View) -> Iterable[Finding]:
    slots, here = session.settings.slots_of(keyspace), version("celery-sticky")
    wanted = session.settings.hash_of(keyspace)
    if (view.slots, view.hash) != (slots, wanted):
        yield wrong(
            f"keyspace {keyspace} has {view.slots} slots and {view.hash}, but this app is configured with {slots} and "
            f"{wanted}: its workers refuse to start, and messages it sends are refused or buried. "
            f"{how_to_agree(keyspace, view, slots)}"
        )
    versions = {member.attributes.get("version", "unknown") for member in view.members.values()}
    if versions - {here}:
        yield note(f"keyspace {keyspace}: members run release {', '.join(sorted(versions))}; this is {here}")
    if len(view.members) * 10 > view.slots:
        yield note(
            f"keyspace {keyspace}: {view.slots} slots are few for {len(view.members)} workers; "
            "use at least ten slots for each worker to share the keys evenly"
        )
    if view.members and not any(member.weight for member in view.active):
        yield wrong(f"keyspace {keyspace}: no member takes slots: every member is leaving or has weight 0")


def job_findings(session: Session) -> Iterable[Finding]:
    """Look for jobs that fail, that no worker runs, or that are stored where no worker reads."""
    readings, counts = session.read(session.keyspaces), session.job_counts(session.keyspaces)
    for keyspace in session.keyspaces:
        counted, reading = counts[keyspace], readings[keyspace]
        if isinstance(counted, StickyError):
            yield wrong(f"jobs of keyspace {keyspace}: {said(counted)}")
        elif not isinstance(reading, StickyError):  # that is reported already
            yield from _job_findings(session, keyspace, counted, reading)


def _job_findings(session: Session, keyspace: str, counts: JobCounts, reading: Reading) -> Iterable[Finding]:
    placed = session.settings.placed_keyspace(keyspace)
    stray = [group for group in counts.groups if isinstance(group.slot, int) != (placed is None)]
    for group in stray[:1]:
        if placed is None:
            yield wrong(f"jobs: {misplaced.as_placed(keyspace)}")
        else:
            what = f"job {group.name} of key {group.key!r}"
            yield wrong(f"keyspace {keyspace}: {what} does not run: {misplaced.as_plain(keyspace)}")
    jobs = tally(counts, Owners.read(reading, session.settings.lease_ttl, placed))
    for text, remedy in job_problems(jobs):
        yield wrong(f"keyspace {keyspace}: {text}: {remedy}")
    if (apart := quarantine(jobs)) is not None:
        text, remedy = apart
        yield note(f"keyspace {keyspace}: {text}: {remedy}")


def task_findings(session: Session) -> Iterable[Finding]:
    """Look for tasks whose options contradict their key."""
    specs = session.tasks.all()
    if not specs:
        yield note("no task of this app has a key: check that the app imports the modules that define keyed tasks")
    taking_part = session.settings.keyspaces
    for name, spec in sorted(specs.items()):
        yield from _destination(session.app, session.app.tasks[name], spec)
        if taking_part is not None and spec.keyspace not in taking_part:
            yield note(
                f"task {name} belongs to keyspace {spec.keyspace}, which is not in sticky_keyspaces: "
                "workers with these settings do not run it"
            )


def _destination(app: Any, task: Any, spec: KeySpec) -> Iterable[Finding]:
    own = [option for option in DESTINATION if getattr(task, option, None)]
    if own:
        yield wrong(f"task {spec.task} is keyed but sets its own {own[0]}: every send is refused; remove that option")
    routed = app.amqp.router.lookup_route(spec.task, (), {}, {}, task) if app.amqp.router.routes else None
    if isinstance(routed, dict) and any(routed.get(option) for option in DESTINATION):
        yield note(f"task {spec.task} is keyed: the destination that task_routes gives it is ignored")


def app_findings(session: Session) -> Iterable[Finding]:
    """Look for Celery settings that conflict with keyed tasks."""
    conf = session.app.conf
    if conf.task_protocol == 1:
        yield wrong("task_protocol is 1: keyed tasks need protocol 2; messages of protocol 1 are buried")
    if conf.task_always_eager:
        yield note("task_always_eager is on: tasks run in the caller's process, and nothing is sent")
    if not conf.worker_enable_remote_control:
        yield note("worker_enable_remote_control is off: revoke and inspect do not reach workers")
    if conf.worker_cancel_long_running_tasks_on_connection_loss:
        yield note(
            "worker_cancel_long_running_tasks_on_connection_loss is on: it cancels tasks without a key. Keyed tasks "
            "continue when a connection is lost, even though Celery's log says that it terminates them"
        )
    if session.settings.weight == 0:
        yield note("sticky_weight is 0: workers with these settings get no slots")
