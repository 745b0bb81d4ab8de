"""The slots of a keyspace: numbered slots and, in a placed keyspace, worker queues and the places of keys.

A numbered slot is an `int`. The other two are `str`, and their text is what queue names, stores and logs carry.
"""

from __future__ import annotations

from typing import Self

_WORKER, _KEY = "@", "="


class WorkerQueue(str):
    """The queue of one worker in a placed keyspace. Its text is `@<worker>`."""

    __slots__ = ()
    __match_args__ = ("worker",)

    def __new__(cls, worker: str) -> Self:
        """Return the queue of the worker with this node name."""
        return str.__new__(cls, _WORKER + worker)

    def __getnewargs__(self) -> tuple[str]:
        return (self.worker,)  # copy and unpickle call `__new__` with this

    @property
    def worker(self) -> str:
        """The worker's node name."""
        return self[1:]


class KeyPlace(str):
    """The place that holds the jobs of one key in a placed keyspace. Its text is `=<key>`."""

    __slots__ = ()
    __match_args__ = ("key",)

    def __new__(cls, key: str) -> Self:
        """Return the place of this key."""
        return str.__new__(cls, _KEY + key)

    def __getnewargs__(self) -> tuple[str]:
        return (self.key,)  # see `WorkerQueue`

    @property
    def key(self) -> str:
        """The key."""
        return self[1:]


Slot = int | WorkerQueue | KeyPlace
"""A slot of a keyspace: its number, a worker queue, or the place of a key."""


def parse_slot(text: str) -> Slot | None:
    """Return the slot with this text, as it is in queue names and stores, or None if no slot has this text."""
    if text.isascii() and text.isdigit():
        return int(text)
    if len(text) > 1:  # this text has its prefix already, so the constructors are bypassed
        if text.startswith(_WORKER):
            return str.__new__(WorkerQueue, text)
        if text.startswith(_KEY):
            return str.__new__(KeyPlace, text)
    return None
