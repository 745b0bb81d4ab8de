"""What is written on a message: the stamp the sender puts on it, and what the task sees of it when it runs.

Every message of a keyed task has one header `sticky` with the stamp. A caller may give the key himself in the header
`sticky-key`, and its keyspace in `sticky-keyspace`.
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
    """Where a message belongs, as its sender worked it out."""

    key: str
    keyspace: str
    slot: int
    slots: int
    at: float
    """The sender's wall clock, in seconds since the epoch: for showing ages, never for decisions."""
    hops: int = 0
    """How often workers have passed the message on to each other."""
    starts: int | None = None
    """Starts counted in queues that it was passed on from; None: it was never found in flight there."""

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
            InvalidKey: it is not a stamp, it is one of a later version, or its slot is not its key's.
        """
        if not isinstance(header, dict):
            raise InvalidKey(f"the stamp is a {type(header).__name__}, not a mapping")
        _check_version(header.get("v"))
        try:
            stamp = msgspec.convert(header, cls)  # takes no value of another type: True is no slot
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
        raise InvalidKey(f"the stamp has version {version}, this is up to {STAMP_VERSION}: upgrade celery-sticky here")
    if version < 1:
        raise InvalidKey(f"the stamp has version {version}, which never was")


class StickyContext(dict[str, Any]):
    """What a running task sees as `self.request.sticky`.

    A dict, because Celery may pickle a request into a child process or copy its fields into JSON headers.
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
        """The slot's fencing token: give it to whatever the task writes to."""
        return int(self["epoch"])

    @property
    def attempt(self) -> int:
        """How many times this message was started, this time included, as far as is known."""
        return int(self["attempt"])

    @property
    def worker(self) -> str:
        """The node name of the worker that runs it."""
        return str(self["worker"])
