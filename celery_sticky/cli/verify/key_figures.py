"""How long directed keys stood still when they moved. A key counts only if its next task was waiting all the while."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from celery_sticky.cli.verify.run import Outcome
from celery_sticky.cli.verify.site import node
from celery_sticky.testing.history import Kind, Run, pair
from celery_sticky.testing.judge import by_key
from celery_sticky.testing.measure import SECOND


def takeovers(outcome: Outcome) -> list[float]:
    """Return for each key of a killed worker the seconds from its death until a task that was there began elsewhere."""
    deaths = [(node(one.step.workers[0]), one.since) for one in outcome.chronicle.done if one.step.fault == "kill"]
    return [
        (run.start.at - death) / SECOND
        for before, run, accepted in _moves(outcome)
        for worker, death in deaths
        if before.start.worker == worker and max(before.start.at, accepted) < death < run.start.at
    ]


def handovers(outcome: Outcome, orderly: Iterable[str]) -> list[float]:
    """Return the seconds from the end of a run until the next one of its key began in another worker.

    `orderly`: the faults that may go on meanwhile.
    """
    orderly = tuple(orderly)
    rough = [(one.since, one.until) for one in outcome.chronicle.done if one.step.fault not in orderly]
    return [
        (run.start.at - before.until) / SECOND
        for before, run, accepted in _moves(outcome)
        if before.ended
        and accepted < before.until
        and not any(since <= run.start.at and before.until <= until for since, until in rough)
    ]


def _moves(outcome: Outcome) -> Iterable[tuple[Run, Run, int]]:
    """Yield each two runs of a key in a row, in two workers, and when the second one's task was accepted."""
    accepted = {event.task_id: event.at for event in outcome.events if event.kind is Kind.PUBLISHED}
    runs = pair(sorted(outcome.events, key=lambda event: event.at), outcome.deaths)
    for group in by_key(runs):
        for before, run in pairwise(group):
            if before.start.worker != run.start.worker and run.start.task_id in accepted:
                yield before, run, accepted[run.start.task_id]
