"""How Kombu reaches the toy broker. A real package has this already, or Kombu has it."""

from __future__ import annotations

from typing import Any

from kombu.transport import memory
from kombu.utils.json import dumps

from celery_sticky.keys import is_slot_queue
from toybroker import server


class Channel(memory.Channel):  # type: ignore[misc]
    """Publishes slot queues to the toy server, and leaves the rest to Kombu's in-memory transport."""

    def _new_queue(self, queue: str, **options: Any) -> None:
        server.declared.add(queue)
        super()._new_queue(queue, **options)

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        prefix = queue.partition(".")[0]
        if not is_slot_queue(queue, prefix):
            super()._put(queue, message, **options)
        elif queue in server.declared:
            server.broker(prefix).publish(queue, dumps(message).encode())


class Transport(memory.Transport):  # type: ignore[misc]
    """The transport of `toy://`."""

    Channel = Channel
