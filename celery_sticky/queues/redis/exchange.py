"""One round trip of `fetch`: verdicts and wants to script arguments, and the script's flat reply back again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from celery_sticky.queues.base import Act, Delivery, Fetched, Tag, Tenure, Verdict, Want
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.resp import Argument

NOTHING_WANTED = -1
NOT_NOW = -1
REQUEST_BYTES = 1024 * 1024
"""Bytes of bodies that one request carries."""
REQUEST_VERDICTS = 256


@dataclass(slots=True)
class Part:
    """What is said under one tenure."""

    tenure: Tenure
    limit: int = NOTHING_WANTED
    verdicts: list[Verdict] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """What came of one trip."""

    fetched: Fetched = field(default_factory=Fetched)
    later: list[Verdict] = field(default_factory=list)
    """Verdicts that the script had no time for."""
    too_big: list[tuple[Tenure, str]] = field(default_factory=list)
    """Lists in whose front stands a message too big for a script."""


def arrange(wants: Sequence[Want], verdicts: Sequence[Verdict]) -> list[Part]:
    """Sort what is to be said by tenure, in the order of the wants."""
    parts = {want.tenure: Part(want.tenure, max(want.limit, 0)) for want in wants}
    for verdict in verdicts:
        tenure = verdict.tenure
        part = parts.get(tenure)
        if part is None:
            part = parts[tenure] = Part(tenure)
        part.verdicts.append(verdict)
    return list(parts.values())


def split(verdicts: Sequence[Verdict]) -> int:
    """Return how many of the verdicts go with one request: the rest would make it too long for a script."""
    size = 0
    for number, verdict in enumerate(verdicts[:REQUEST_VERDICTS]):
        size += len(verdict.body or b"")
        if number and size > REQUEST_BYTES:
            return number
    return min(len(verdicts), REQUEST_VERDICTS)


def arguments(parts: Sequence[Part], layout: Layout, now: float, trip: int) -> list[Argument]:
    """Return the arguments of the script for these parts."""
    said: list[Argument] = [repr(now), layout.separator, layout.steps_json, trip]
    for part in parts:
        tenure = part.tenure
        said += (tenure.epoch, tenure.incarnation, tenure.open_count, part.limit, len(part.verdicts))
        for verdict in part.verdicts:
            if verdict.act is Act.ACK:
                said.append("a" + field_of(verdict.tag))
            else:
                _say(said, verdict, layout)
    return said


def field_of(tag: Tag) -> str:
    """Return the field of a delivery in the hash of what is in flight."""
    return f"{tag.number}:{tag.trip}"


def _say(said: list[Argument], verdict: Verdict, layout: Layout) -> None:
    name, body = field_of(verdict.tag), verdict.body or b""
    match verdict.act:
        case Act.MARK:
            said += ("m" + name, verdict.starts)
        case Act.UNMARK:
            said += ("u" + name, verdict.starts)
        case Act.DEFER:
            said += ("d" + name, repr(verdict.due), body)
        case Act.MOVE:
            said += ("f" + name, layout.queue(verdict.tenure.keyspace, verdict.to), body)
        case Act.BURY:
            slot, keyspace = verdict.tenure.slot, verdict.tenure.keyspace
            said += ("b" + name, layout.dead(keyspace), f"{slot}-{verdict.tag.number}", verdict.info)


def read(parts: Sequence[Part], reply: Sequence[object], trip: int) -> Answer:
    """Return what the script answered to these parts on this trip."""
    answer, answers = Answer(), iter(reply)
    for part in parts:
        held = next(answers)
        if isinstance(held, bytes):
            _broken(answer, part, held)
        elif held == 1:
            for verdict in part.verdicts:
                told = next(answers)
                if told == 1 and verdict.act is Act.ACK:
                    answer.fetched.confirmed.append(verdict)
                else:
                    _settled(answer, verdict, told)
            if part.limit != NOTHING_WANTED:
                _brought(answer, part.tenure, trip, answers)
        else:
            answer.fetched.refused += part.verdicts
            if part.limit != NOTHING_WANTED:
                answer.fetched.lost.add((part.tenure.keyspace, part.tenure.slot))
    return answer


def _broken(answer: Answer, part: Part, reason: bytes) -> None:
    text = reason.decode(errors="replace")
    answer.fetched.failed += [(verdict, text) for verdict in part.verdicts]
    if part.limit != NOTHING_WANTED:
        answer.fetched.broken[part.tenure.keyspace, part.tenure.slot] = text


def _settled(answer: Answer, verdict: Verdict, told: object) -> None:
    fetched = answer.fetched
    if isinstance(told, bytes):
        fetched.failed.append((verdict, told.decode(errors="replace")))
    elif told == NOT_NOW:
        answer.later.append(verdict)
    elif told == 0:
        fetched.refused.append(verdict)
    else:
        fetched.confirmed.append(verdict)
        if verdict.act is Act.MARK:
            fetched.marks[verdict.tenure.keyspace, verdict.tenure.slot, verdict.tag] = cast(int, told)


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
        priority, _, marks = head.partition(b",")
        bring(Delivery(tenure, Tag(number, name), int(priority), body, int(marks) if marks else None))
