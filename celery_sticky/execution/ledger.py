"""Which tasks use the ledger, and the runs of their messages."""

from __future__ import annotations

from celery_sticky.envelope import Envelope
from celery_sticky.keyed import KeyedTasks
from celery_sticky.queues.base import RunClaim


def claim_of(tasks: KeyedTasks, envelope: Envelope) -> RunClaim | None:
    """Return the run of a message, or None if its task does not use the ledger.

    A retry keeps the id of its task, so the number of retries is part of the run's name.
    """
    spec = tasks.spec_for(envelope.task)
    if spec is None or not spec.uses_ledger:
        return None
    return RunClaim(f"{envelope.task_id}/{envelope.headers.get('retries') or 0}", spec.once)


def ledgers(tasks: KeyedTasks) -> dict[str, list[str]]:
    """Return the names of the tasks that use a ledger, by keyspace."""
    found: dict[str, list[str]] = {}
    for name, spec in tasks.all().items():
        if spec.uses_ledger:
            found.setdefault(spec.keyspace, []).append(name)
    return found
