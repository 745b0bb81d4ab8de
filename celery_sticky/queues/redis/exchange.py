"""One round trip of `fetch`: converts dispositions and wants to script arguments, and the flat reply to an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from celery_sticky.queues.base import Delivery, Disposition, Fetched, Outcome, Tag, Tenure, Want
from celery_sticky.queues.ledger_records import run_name, tag_of, tag_text
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.redis_resp import Argument

NOTHING_WANTED = -1
NOT_NOW = -1
REQUEST_BYTES = 1024 * 1024
"""Most bytes of bodies in one request."""
REQUEST_DISPOSITIONS = 256
ACTS = {
    Outcome.ACK: "a",
    Outcome.DEFER: "d",
    Outcome.BURY: "b",
    Outcome.MOVE: "f",
    Outcome.COUNT_START: "m",
    Outcome.UNCOUNT_START: "u",
    Outcome.CLAIM: "c",
    Outcome.UNCLAIM: "g",
}
"""Outcomes as the script names them; in upper case if they settle a run too."""
ACTS_OF_STARTS, ACTS_OF_RUNS = "mu", "cg"


@dataclass(slots=True)
class TenurePart:
    """The dispositions and the want under one tenure."""

    tenure: Tenure
    limit: int = NOTHING_WANTED
    dispositions: list[Disposition] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """The result of one round trip."""

    fetched: Fetched = field(default_factory=Fetched)
    later: list[Disposition] = field(default_factory=list)
    """Dispositions that the script had no time for."""
    too_big: list[tuple[Tenure, str]] = field(default_factory=list)
    """Lists whose first message is too big for a script."""


def arrange(wants: Sequence[Want], dispositions: Sequence[Disposition]) -> list[TenurePart]:
    """Group dispositions and wants by tenure, in the order of the wants."""
    parts = {want.tenure: TenurePart(want.tenure, max(want.limit, 0)) for want in wants}
    for disposition in dispositions:
        tenure = disposition.tenure
        part = parts.get(tenure)
        if part is None:
            part = parts[tenure] = TenurePart(tenure)
        part.dispositions.append(disposition)
    return list(parts.values())


def split(dispositions: Sequence[Disposition]) -> int:
    """Return how many of the dispositions fit into one request; more would make it too long for a script."""
    size = 0
    for number, disposition in enumerate(dispositions[:REQUEST_DISPOSITIONS]):
        size += len(disposition.body or b"")
        if number and size > REQUEST_BYTES:
            return number
    return min(len(dispositions), REQUEST_DISPOSITIONS)


def arguments(parts: Sequence[TenurePart], layout: Layout, now: float, trip: int) -> list[Argument]:
    """Return the script arguments for these parts."""
    said: list[Argument] = [repr(now), layout.separator, layout.steps_json]
    for part in parts:
        tenure = part.tenure
        said += (tenure.epoch, tenure.incarnation, tenure.open_count, part.limit, len(part.dispositions))
        for disposition in part.dispositions:
            if disposition.outcome is Outcome.ACK and disposition.claim is None:
                said.append("a" + tag_text(disposition.tag))
            else:
                said += _words(disposition, layout)
        if part.limit != NOTHING_WANTED:
            said.append(tenure.trip(trip))
    return said


def _words(disposition: Disposition, layout: Layout) -> list[Argument]:
    """Return the script arguments of a disposition."""
    act, words, claim = ACTS[disposition.outcome], _own_words(disposition, layout), disposition.claim
    if act in ACTS_OF_RUNS:
        assert claim is not None, "a run is claimed or given back"
    if claim is not None and act not in ACTS_OF_STARTS:
        act = act if act in ACTS_OF_RUNS else act.upper()
        words += (layout.ledger(disposition.tenure.keyspace), run_name(claim.run))
    return [act + tag_text(disposition.tag), *words]


def _own_words(disposition: Disposition, layout: Layout) -> list[Argument]:
    """Return the arguments between the delivery and its run."""
    keyspace, body = disposition.tenure.keyspace, disposition.body or b""
    match disposition.outcome:
        case Outcome.COUNT_START | Outcome.UNCOUNT_START:
            return [disposition.starts]
        case Outcome.CLAIM:
            return [int(disposition.claim is not None and disposition.claim.once)]
        case Outcome.DEFER:
            return [repr(disposition.due), body]
        case Outcome.UNCLAIM if disposition.claim is not None:
            return [_fields(disposition.claim.earlier)]
        case Outcome.MOVE:
            earlier = [] if disposition.claim is None else [_fields(disposition.claim.earlier)]
            return [layout.queue(keyspace, disposition.to), body, *earlier]
        case Outcome.BURY:
            dead_id = f"{disposition.tenure.slot}-{disposition.tag.number}"
            return [layout.dead(keyspace), dead_id, disposition.info]
        case _:
            return []


def _fields(tags: Sequence[Tag]) -> str:
    return json.dumps([tag_text(tag) for tag in tags]) if tags else ""


def read(parts: Sequence[TenurePart], reply: Sequence[object], trip: int) -> Answer:
    """Parse the script's reply to these parts on this trip."""
    answer, answers = Answer(), iter(reply)
    for part in parts:
        held = next(answers)
        if isinstance(held, bytes):
            _broken(answer, part, held)
        elif held == 1:
            for disposition in part.dispositions:
                told = next(answers)
                if told == 1 and disposition.outcome is Outcome.ACK:
                    answer.fetched.confirmed.append(disposition)
                else:
                    _settled(answer, disposition, told)
            if part.limit != NOTHING_WANTED:
                _brought(answer, part.tenure, trip, answers)
        else:
            answer.fetched.refused += part.dispositions
            if part.limit != NOTHING_WANTED:
                answer.fetched.lost.add((part.tenure.keyspace, part.tenure.slot))
    return answer


def _broken(answer: Answer, part: TenurePart, reason: bytes) -> None:
    text = reason.decode(errors="replace")
    answer.fetched.failed += [(disposition, text) for disposition in part.dispositions]
    if part.limit != NOTHING_WANTED:
        answer.fetched.broken[part.tenure.keyspace, part.tenure.slot] = text


def _settled(answer: Answer, disposition: Disposition, told: object) -> None:
    fetched = answer.fetched
    if isinstance(told, bytes):
        fetched.failed.append((disposition, told.decode(errors="replace")))
    elif told == NOT_NOW:
        answer.later.append(disposition)
    elif told == 0:
        fetched.refused.append(disposition)
    else:
        fetched.confirmed.append(disposition)
        at = (disposition.tenure.keyspace, disposition.tenure.slot, disposition.tag)
        if disposition.outcome is Outcome.COUNT_START:
            fetched.counted_starts[at] = cast(int, told)
        elif disposition.outcome is Outcome.CLAIM:
            fetched.claims[at] = next(map(tag_of, cast(list[bytes], told)), None)


def _brought(answer: Answer, tenure: Tenure, trip: int, answers: Iterator[object]) -> None:
    fetched, place = answer.fetched, (tenure.keyspace, tenure.slot)
    empty = next(answers)
    if isinstance(empty, bytes):
        fetched.broken[place] = empty.decode(errors="replace")
        return
    if empty == 1:
        fetched.drained.add(place)
    if due := next(answers):
        fetched.due[place] = float(cast(bytes, due))
    if too_big := next(answers):
        answer.too_big.append((tenure, cast(bytes, too_big).decode()))
    count = cast(int, next(answers))
    if not count:
        return
    first, name, bring = cast(int, next(answers)), tenure.trip(trip), fetched.deliveries.append
    for number in range(first, first + count):
        head, _, body = cast(bytes, next(answers)).partition(b":")
        priority, _, counted_starts = head.partition(b",")
        bring(Delivery(tenure, Tag(number, name), int(priority), body, int(counted_starts) if counted_starts else None))
