"""The ownership document of one keyspace at one version: its members, and the owner and target of each slot.

It is always replaced as a whole. This module knows no clock, no store and no "self".

The written form is JSON, deflated if it is long. Members are listed once, sorted by name, followed by the names of
`away` (homes of slots whose member is gone). `owner`, `target` and `home` hold positions in that list, -1 for nobody.
`target` and `home` hold null where they equal `owner`, and are left out if they equal it for every slot.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from celery_sticky.errors import DocumentDamaged, DocumentTooNew

FORMAT = 1
"""Increases when a document is written that an older release would misread."""

READABLE = 4096
"""Up to this many bytes a document is written as plain JSON, so that a person can read it in the store."""

_NOBODY = -1

HAS_WORKER_QUEUE = "direct"
"""The attribute of a member with a worker queue: when it leaves, it stays until that queue is closed too."""

STALLED = "stalled"
"""The attribute of a member that cannot run tasks now. Value: since when (seconds since the epoch), a space, why."""


class MemberState(StrEnum):
    """Whether a member may be the target of slots."""

    ACTIVE = "active"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a worker in a keyspace."""

    name: str
    incarnation: str
    joined: int = 0
    """The version at which it joined: an order, not a time."""
    weight: int = 1
    state: MemberState = MemberState.ACTIVE
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def stalled(self) -> tuple[float, str] | None:
        """Since when (seconds since the epoch) and why the worker cannot run tasks, or None."""
        since, _, why = self.attributes.get(STALLED, "").partition(" ")
        return (float(since), why) if why else None


@dataclass(frozen=True, slots=True)
class View:
    """The whole ownership document at one version. `owner`, `target` and `home` hold member names, by slot.

    `home` is the name that a slot returns to: its owner, or an earlier owner that went away and may return.
    """

    version: int
    generation: int
    store_id: str
    slots: int
    hash: str
    members: Mapping[str, Member]
    owner: tuple[str | None, ...]
    target: tuple[str | None, ...]
    epoch: tuple[int, ...]
    home: tuple[str | None, ...]

    @property
    def active(self) -> tuple[Member, ...]:
        """The members that may be the target of slots, by name."""
        return tuple(m for _, m in sorted(self.members.items()) if m.state is MemberState.ACTIVE)

    @property
    def settled(self) -> bool:
        """Whether every slot is with its target."""
        return self.owner == self.target

    @property
    def fresh(self) -> bool:
        """Whether nobody has been made an owner yet: the document may be lost before all members have seen it."""
        return not any(self.home)

    @property
    def unowned(self) -> frozenset[int]:
        """The slots that nobody may run."""
        return self.owned_by(None)

    @property
    def max_epoch(self) -> int:
        """The highest epoch of any slot."""
        return max(self.epoch, default=0)

    def owned_by(self, name: str | None) -> frozenset[int]:
        """Return the slots that `name` may run now."""
        return frozenset(slot for slot, owner in enumerate(self.owner) if owner == name)

    def giving(self, name: str) -> frozenset[int]:
        """Return the slots that `name` owns and should release."""
        pairs = zip(self.owner, self.target, strict=True)
        return frozenset(slot for slot, (owner, target) in enumerate(pairs) if owner == name != target)

    def member_of(self, incarnation: str) -> Member | None:
        """Return the member with this incarnation, if it still is a member."""
        return next((m for m in self.members.values() if m.incarnation == incarnation), None)

    def to_bytes(self) -> bytes:
        """Return the written form; equal views give equal bytes."""
        away = sorted({name for name in self.home if name is not None and name not in self.members})
        position: dict[str | None, int] = {name: at for at, name in enumerate([*sorted(self.members), *away])}
        position[None] = _NOBODY
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": self.version,
            "generation": self.generation,
            "store_id": self.store_id,
            "slots": self.slots,
            "hash": self.hash,
            "members": [_member_document(m) for _, m in sorted(self.members.items())],
            "owner": [position[name] for name in self.owner],
            "epoch": self.epoch,
        }
        for field_name, column in (("target", self.target), ("home", self.home)):
            if column != self.owner:
                pairs = zip(column, self.owner, strict=True)
                document[field_name] = [None if name == owner else position[name] for name, owner in pairs]
        if away:
            document["away"] = away
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        return text if len(text) <= READABLE else _deflated(text)

    @classmethod
    def from_bytes(cls, data: bytes) -> View:
        """Read the written form.

        Raises:
            DocumentDamaged: the bytes are not an ownership document, or one that contradicts itself.
            DocumentTooNew: a newer release wrote it; upgrade this one, and do not overwrite the document.
        """
        try:
            document = json.loads(data if data[:1] == b"{" else zlib.decompress(data))
        except (ValueError, zlib.error, RecursionError) as error:
            raise DocumentDamaged(f"the ownership document is neither JSON nor deflated JSON: {error}") from error
        return _view(document)


def _deflated(text: bytes) -> bytes:
    """Deflate unordered numbers: ignoring short matches and using small blocks saves a tenth of the usual size."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 7, zlib.Z_FILTERED)
    return deflate.compress(text) + deflate.flush()


def _member_document(member: Member) -> dict[str, Any]:
    document: dict[str, Any] = {"name": member.name, "incarnation": member.incarnation, "joined": member.joined}
    if member.weight != 1:
        document["weight"] = member.weight
    if member.state is not MemberState.ACTIVE:
        document["state"] = member.state.value
    if member.attributes:
        document["attributes"] = dict(sorted(member.attributes.items()))
    return document


def _view(document: Any) -> View:
    form = _number(document, "format", least=1)
    if form > FORMAT:
        raise DocumentTooNew(f"the ownership document has format {form}; this release reads up to {FORMAT}")
    slots = _number(document, "slots", least=1)
    members = {m.name: m for m in map(_member, _list(document, "members"))}
    if len(members) != len(document["members"]):
        raise DocumentDamaged("the ownership document names a member twice")
    names = list(members)
    owner = _names(_column(document, "owner", slots), names, "owner")
    epoch = tuple(_column(document, "epoch", slots))
    if not all(type(value) is int and value >= 0 for value in epoch):
        raise DocumentDamaged("the ownership document has an `epoch` that is not a number")
    away = _list(document, "away") if "away" in document else []
    if not all(isinstance(name, str) for name in away):
        raise DocumentDamaged("the ownership document has an `away` that is not a list of names")
    return View(
        version=_number(document, "version"),
        generation=_number(document, "generation"),
        store_id=_text(document, "store_id"),
        slots=slots,
        hash=_text(document, "hash"),
        members=members,
        owner=owner,
        target=_differing(document, "target", owner, names),
        epoch=epoch,
        home=_differing(document, "home", owner, [*names, *away]),
    )


def _member(document: Any) -> Member:
    state = _text(document, "state", MemberState.ACTIVE.value)
    attributes = document.get("attributes", {})
    if state not in tuple(MemberState):
        raise DocumentDamaged(f"the ownership document has a member in the unknown state {state!r}")
    if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
        raise DocumentDamaged("the ownership document has a member whose `attributes` do not map names to texts")
    return Member(
        name=_text(document, "name"),
        incarnation=_text(document, "incarnation"),
        joined=_number(document, "joined"),
        weight=_number(document, "weight", default=1),
        state=MemberState(state),
        attributes=attributes,
    )


def _differing(document: Any, key: str, owner: tuple[str | None, ...], names: list[str]) -> tuple[str | None, ...]:
    if key not in document:
        return owner
    column = _column(document, key, len(owner))
    written = _names([_NOBODY if value is None else value for value in column], names, key)
    return tuple(mine if value is None else name for mine, value, name in zip(owner, column, written, strict=True))


def _names(column: Sequence[Any], names: list[str], key: str) -> tuple[str | None, ...]:
    if not all(type(at) is int and _NOBODY <= at < len(names) for at in column):
        raise DocumentDamaged(f"the ownership document has an `{key}` outside its list of members")
    by_position: list[str | None] = [*names, None]  # -1 is the last
    return tuple(by_position[at] for at in column)


def _column(document: Any, key: str, slots: int) -> list[Any]:
    column = _list(document, key)
    if len(column) != slots:
        raise DocumentDamaged(f"the ownership document has {slots} slots but {len(column)} values of `{key}`")
    return column


def _list(document: Any, key: str) -> list[Any]:
    return list(_value(document, key, list, None))


def _text(document: Any, key: str, default: str | None = None) -> str:
    return str(_value(document, key, str, default))


def _number(document: Any, key: str, *, default: int | None = None, least: int = 0) -> int:
    number = int(_value(document, key, int, default))
    if number < least:
        raise DocumentDamaged(f"the ownership document has a `{key}` below {least}")
    return number


def _value(document: Any, key: str, kind: type, default: Any) -> Any:
    value = document.get(key, default) if isinstance(document, dict) else None
    if type(value) is not kind:  # a bool does not pass for a number
        raise DocumentDamaged(f"the ownership document has no usable `{key}`")
    return value
