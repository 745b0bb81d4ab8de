"""The ownership document of one keyspace at one version: who is a member, who owns which slot, who should.

Always replaced whole. Nothing here knows a clock, a store or who "we" are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class View:
    """The whole ownership document at one version. `owner`, `target`, `home` hold member names, by slot."""

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
