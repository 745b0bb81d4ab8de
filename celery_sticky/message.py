"""The stamp that a sender puts on a message, and the context that the task sees when it runs.

Every message of a keyed task has one header `sticky` with the stamp. A caller may set the key in the header
`sticky-key`, and the keyspace in `sticky-keyspace`.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from celery_sticky.errors import InvalidKey
from celery_sticky.keys import check_keyspace, slot_for

STAMP_HEADER = "sticky"
KEY_HEADER = "sticky-key"
KEYSPACE_HEADER = "sticky-keyspace"
STAMP_VERSION = 1


class Stamp(msgspec.Struct, frozen=True):
    """The slot of a message, as computed by its sender."""

    key: str
    keyspace: str
    slot: int
    slots: int
    at: float
    """The sender's wall clock, in seconds since the Unix epoch. It is used to show ages, never for decisions."""
    hops: int = 0
    """How often workers have passed the message on to each other."""
    starts: int | None = None
    """Starts counted in the queues it was passed on from; None if it was never in flight there."""

    def to_header(self) -> dict[str, Any]:
        """Return the value of the `sticky` header."""
        header: dict[str, Any] = {
            "v": STAMP_VERSION,
            "key": self.key,
            "keyspace": self.keyspace,
            "slot": self.slot,
            "slots": self.slots,
            "at": self.at,
        }
        if self.hops:
            header["hops"] = self.hops
        if self.starts is not None:
            header["starts"] = self.starts
        return header

    @classmethod
    def from_header(cls, header: object) -> Self:
        """Read the value of a `sticky` header.

        Raises:
            InvalidKey: the value is not a stamp, has a later version, or its slot does not match its key.
        """
        if not isinstance(header, dict):
            raise InvalidKey(f"the stamp is a {type(header).__name__}, not a mapping")
        _check_version(header.get("v"))
        try:
            stamp = msgspec.convert(header, cls)  # strict about types: it refuses True as a slot
        except msgspec.ValidationError as error:
            raise InvalidKey(f"the stamp cannot be read: {error}") from None
        check_keyspace(stamp.keyspace)
        slot, slots = stamp.slot, stamp.slots
        if not 0 <= slot < slots < 1 << 31:
            raise InvalidKey(f"the stamp names slot {slot} of {slots}")
        if slot != (own := slot_for(stamp.key, slots)):
            raise InvalidKey(f"the stamp names slot {slot} of {slots}, but its key belongs to slot {own}")
        return stamp


def _check_version(version: object) -> None:
    if type(version) is not int:
        raise InvalidKey(f"the stamp's 'v' is {version!r:.80}, not int")
    if version > STAMP_VERSION:
        raise InvalidKey(
            f"the stamp has version {version}; this release reads versions up to {STAMP_VERSION}: upgrade celery-sticky"
        )
    if version < 1:
        raise InvalidKey(f"the stamp has version {version}, which does not exist")


class StickyContext(dict[str, Any]):
    """The value of `self.request.sticky` in a running task.

    It is a dict because Celery may pickle a request into a child process or copy its fields into JSON headers.
    """

    __slots__ = ()

    @classmethod
    def of(cls, stamp: Stamp, *, epoch: int, attempt: int, worker: str) -> Self:
        """Make the context of one start of a message."""
        return cls(key=stamp.key, keyspace=stamp.keyspace, slot=stamp.slot, epoch=epoch, attempt=attempt, worker=worker)

    @property
    def key(self) -> str:
        """The key, as text."""
        return str(self["key"])

    @property
    def keyspace(self) -> str:
        """The keyspace of the key."""
        return str(self["keyspace"])

    @property
    def slot(self) -> int:
        """The slot of the key."""
        return int(self["slot"])

    @property
    def epoch(self) -> int:
        """The slot's fencing token: pass it to every system that the task writes to."""
        return int(self["epoch"])

    @property
    def attempt(self) -> int:
        """Number of known starts of this message, including this one."""
        return int(self["attempt"])

    @property
    def worker(self) -> str:
        """The node name of the worker that runs the task."""
        return str(self["worker"])
