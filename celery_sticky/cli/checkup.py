"""`doctor`'s checks of members, jobs, tasks and the app's configuration."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import closing
from importlib.metadata import version
from typing import Any

from celery_sticky.cli.answers import ask, stall_text
from celery_sticky.cli.failures import failures, said
from celery_sticky.cli.session import Session
from celery_sticky.findings import Finding, note, wrong
from celery_sticky.jobs import misplaced
from celery_sticky.keyed import KeySpec
from celery_sticky.keyspace import how_to_agree
from celery_sticky.ownership.view import View

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
    for keyspace in session.keyspaces:
        yield from guarded(f"keyspace {keyspace}", _keyspace_findings(session, keyspace, answered))
    yield from guarded("revokes", _revoke_findings(session))


def _answer_findings(session: Session, timeout: float, answered: set[str]) -> Iterable[Finding]:
    answers = ask(session.app, None, timeout)
    names = Counter(name for name, _ in answers)
    answered.update(names)
    for name, count in names.items():
        if count > 1:
            yield wrong(f"{count} workers have the node name {name}: give each its own name with -n")
    for name, answer in answers:
        if (loop := answer.get("loop")) and loop["stalled"]:
            yield wrong(stall_text(name, loop["answer_age"], loop["stalled"]))


def _keyspace_findings(session: Session, keyspace: str, answered: Collection[str]) -> Iterable[Finding]:
    reading = session.store(keyspace).read()
    view = reading.view
    if view is None:
        yield note(f"keyspace {keyspace} has no document yet: the first worker writes it, or run `celery sticky init`")
        return
    if view.store_id != reading.store_id:
        yield wrong(f"keyspace {keyspace}: the document comes from another run of the store; workers will replace it")
    for member in view.members.values():
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
    """Look for job records in places that no worker reads."""
    for keyspace in session.keyspaces:
        yield from guarded(f"jobs of keyspace {keyspace}", _job_findings(session, keyspace))


def _job_findings(session: Session, keyspace: str) -> Iterable[Finding]:
    with closing(session.jobs(keyspace)) as jobs:
        if session.settings.placed_keyspace(keyspace) is None:
            places = jobs.places(0)
            if places is not None and places.revisions:
                yield wrong(f"jobs: {misplaced.as_placed(keyspace, len(places.revisions))}")
            return
        for record in jobs.records():
            if isinstance(record.slot, int):
                what = f"job {record.name} of key {record.key!r}"
                yield wrong(f"keyspace {keyspace}: {what} does not run: {misplaced.as_plain(keyspace)}")
                break


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
