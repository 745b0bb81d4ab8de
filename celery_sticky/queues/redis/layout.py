"""The keys in Redis. Queues are where stock Kombu publishes; all other keys are named after their queue.

    <queue>                       list     messages of priority 0; the right end is the front
    <queue><sep>3 … 6 … 9         list     messages of the other priority steps
    <queue>:fence                 hash     epoch, incarnation, count: the tenure; seq: the number of the last delivery;
                                           marks, deferred, big: present if the slot may have some;
                                           opening: present until all deliveries in flight are back in the queue;
                                           heavy, light: one of its messages was too big for a script, or was not;
                                           former: priorities of lists that are no longer steps;
                                           cut: the time before which deferred messages come before the lists;
                                           more: present if any of the fields after seq may be present
    <list>:ahead                  list     while there is a cut: messages that come before that list
    <queue>:flight                hash     <number>:<trip> → <priority>:<body>
    <queue>:deferred              zset     <number>:<priority>:<body>, scored with its due time
    <queue>:marks                 hash     SHA-1 of a suspect's body (its ends, if long) → starts
    <queue>:body:…                list     one body that is too big for a script; its reference is in its place
    <queue>:big                   set      keys of the bodies whose references are in this slot
    <prefix>.<keyspace>:dead      hash     id → <priority>:<body>
    <prefix>.<keyspace>:dead:info hash     id → the JSON object given when it was buried
    <prefix>.<keyspace>:dead:order zset    id, scored with its position
    <prefix>.<keyspace>:ledger    hash     run → the field of the delivery that holds it: claimed, not finished
    <prefix>.<keyspace>:ledger:done zset   run, scored with the time at which it finished

Bodies are never decoded or re-encoded. Two things outlive the messages: the fence, one small hash per slot, and the
ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from celery_sticky.errors import InvalidSettings
from celery_sticky.keys import DEFAULT_PREFIX, queue_name
from celery_sticky.redis_clients import key_prefix
from celery_sticky.slots import Slot

if TYPE_CHECKING:
    from kombu import Connection


@dataclass(frozen=True)
class Layout:
    """The key names of one installation."""

    prefix: str = DEFAULT_PREFIX
    key_prefix: str = ""
    """Kombu's `global_keyprefix`."""
    separator: str = "\x06\x16"
    """Kombu's `sep`."""
    steps: tuple[int, ...] = (0, 3, 6, 9)
    """Kombu's `priority_steps`, the most urgent first."""

    @classmethod
    def of(cls, connection: Connection, prefix: str) -> Self:
        """Read the transport options that say where Kombu publishes.

        Raises:
            InvalidSettings: `priority_steps` is not an ascending list of integers.
        """
        options = connection.transport_options
        steps = tuple(options.get("priority_steps") or cls().steps)
        if not all(type(step) is int and step >= 0 for step in steps) or sorted(set(steps)) != list(steps):
            raise InvalidSettings(f"priority_steps: {list(steps)} is not an ascending list of integers")
        return cls(prefix, key_prefix(connection), options.get("sep") or cls().separator, steps)

    @cached_property
    def steps_json(self) -> str:
        """The priority steps in the form that the scripts expect."""
        return json.dumps([str(step) for step in self.steps])

    def queue(self, keyspace: str, slot: Slot) -> str:
        """Return the key of a slot queue."""
        return self.key_prefix + queue_name(keyspace, slot, self.prefix)

    def lists(self, keyspace: str, slot: Slot) -> list[str]:
        """Return the list keys of a slot queue, one per priority step."""
        queue = self.queue(keyspace, slot)
        return [f"{queue}{self.separator}{step}" if step else queue for step in self.steps]

    def priority_of(self, keyspace: str, slot: Slot, list_key: str) -> int:
        """Return the priority step of a slot queue's list."""
        step = list_key.removesuffix(":ahead").removeprefix(self.queue(keyspace, slot)).removeprefix(self.separator)
        return int(step or 0)

    def dead(self, keyspace: str) -> str:
        """Return the key of a keyspace's buried messages."""
        return f"{self.key_prefix}{self.prefix}.{keyspace}:dead"

    def ledger(self, keyspace: str) -> str:
        """Return the key of a keyspace's claimed runs."""
        return f"{self.key_prefix}{self.prefix}.{keyspace}:ledger"
