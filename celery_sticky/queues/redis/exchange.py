"""One round trip of `fetch`: verdicts and wants to script arguments, and the script's flat reply back again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from celery_sticky.queues.base import Act, Delivery, Fetched, Tag, Tenure, Verdict, Want
from celery_sticky.queues.redis.layout import Layout
from celery_sticky.queues.redis.resp import Argument

NOTHING_WANTED = -1


@dataclass(slots=True)
class Part:
    """What is said under one tenure."""

    tenure: Tenure
    limit: int = NOTHING_WANTED
    verdicts: list[Verdict] = field(default_factory=list)


def arrange(wants: Sequence[Want], verdicts: Sequence[Verdict]) -> list[Part]:
    """Sort what is to be said by tenure, in the order of the wants."""
    parts = {want.tenure: Part(want.tenure, max(want.limit, 0)) for want in wants}
    for verdict in verdicts:
        part = parts.get(verdict.tenure)
        if part is None:
            part = parts[verdict.tenure] = Part(verdict.tenure)
        part.verdicts.append(verdict)
    return list(parts.values())


def arguments(parts: Sequence[Part], layout: Layout, now: float) -> list[Argument]:
    """Return the arguments of the script for these parts."""
    said: list[Argument] = [repr(now), layout.separator, layout.steps_json]
    for part in parts:
        tenure = part.tenure
        said += (tenure.epoch, tenure.incarnation, tenure.open_count, part.limit, len(part.verdicts))
        for verdict in part.verdicts:
            _say(said, verdict, layout)
    return said


def field_of(tag: Tag) -> str:
    """Return the field of a delivery in the hash of what is in flight."""
    return f"{tag.number}:{tag.opening}"


def _say(said: list[Argument], verdict: Verdict, layout: Layout) -> None:
    name = field_of(verdict.tag)
    match verdict.act:
        case Act.ACK:
            said.append("a" + name)
        case Act.MARK:
            said += ("m" + name, verdict.starts)
        case Act.UNMARK:
            said += ("u" + name, verdict.starts)
        case Act.DEFER:
            said += ("d" + name, repr(verdict.due), verdict.body or b"")
        case Act.MOVE:
            said += ("f" + name, layout.queue(verdict.tenure.keyspace, verdict.to), verdict.body or b"")
        case Act.BURY:
            slot, keyspace = verdict.tenure.slot, verdict.tenure.keyspace
            said += ("b" + name, layout.dead(keyspace), f"{slot}-{verdict.tag.number}", verdict.info)


def read(parts: Sequence[Part], reply: Sequence[object]) -> Fetched:
    """Return what the script answered to these parts."""
    fetched = Fetched()
    answers = iter(reply)
    for part in parts:
        held = next(answers) == 1
        if held:
            for verdict in part.verdicts:
                _settled(fetched, verdict, cast(int, next(answers)))
        else:
            fetched.refused += part.verdicts
        if part.limit == NOTHING_WANTED:
            continue
        if held:
            _brought(fetched, part.tenure, answers)
        else:
            fetched.lost.add((part.tenure.keyspace, part.tenure.slot))
    return fetched


def _settled(fetched: Fetched, verdict: Verdict, answer: int) -> None:
    if answer == 0:
        fetched.refused.append(verdict)
        return
    fetched.confirmed.append(verdict)
    if verdict.act is Act.MARK:
        fetched.marks[verdict.tenure.keyspace, verdict.tenure.slot, verdict.tag] = answer


def _brought(fetched: Fetched, tenure: Tenure, answers: Iterator[object]) -> None:
    place = (tenure.keyspace, tenure.slot)
    if next(answers) == 1:
        fetched.drained.add(place)
    if due := next(answers):
        fetched.due[place] = float(cast(bytes, due))
    count = cast(int, next(answers))
    if not count:
        return
    first, opening = cast(int, next(answers)), tenure.opening
    for number in range(first, first + count):
        head, _, body = cast(bytes, next(answers)).partition(b":")
        priority, _, marks = head.partition(b",")
        fetched.deliveries.append(
            Delivery(tenure, Tag(number, opening), int(priority), body, int(marks) if marks else None)
        )
