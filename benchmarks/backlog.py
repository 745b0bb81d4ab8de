"""Very many messages in no time: copies of one that was published, put into the slot queues in large pieces."""

from __future__ import annotations

import base64
import json
import uuid
from collections import defaultdict
from collections.abc import Collection
from itertools import count, islice
from typing import Any

from benchmarks.server import SLOTS, Server
from celery_sticky import queue_for, slot_for

PIECE = 10_000
"""Messages a round trip."""


class Copier:
    """Makes messages of a task that takes its key alone, each with a key and an id of its own."""

    def __init__(self, server: Server, app: Any, task: str) -> None:
        self._server = server
        app.tasks[task].apply_async(("model",))
        self._message = json.loads(server.client.lpop(queue_for("model")))
        self._embed = json.loads(base64.b64decode(self._message["body"]))[2]

    def fill(self, number: int, slots: Collection[int] = range(SLOTS), *, start: int = 0) -> int:
        """Put so many messages into these slots, each of another key; return the number of the first key not used."""
        among, at = set(slots), start
        keys = ((n, f"k{n}", slot) for n in count(start) if (slot := slot_for(f"k{n}", SLOTS)) in among)
        for begin in range(0, number, PIECE):
            piece = defaultdict[str, list[str]](list)
            for n, key, slot in islice(keys, min(PIECE, number - begin)):
                at = n + 1
                queue = queue_for(key)
                piece[queue].append(self._copy(key, slot, queue))
            with self._server.client.pipeline(transaction=False) as pipe:
                for queue, bodies in piece.items():
                    pipe.lpush(queue, *bodies)
                pipe.execute()
        return at

    def _copy(self, key: str, slot: int, queue: str) -> str:
        message, headers, properties = self._message, self._message["headers"], self._message["properties"]
        message["body"] = base64.b64encode(json.dumps([[key], {}, self._embed]).encode()).decode()
        headers["id"] = headers["root_id"] = properties["correlation_id"] = properties["delivery_tag"] = _id()
        headers["sticky"] |= {"key": key, "slot": slot}
        properties["delivery_info"]["routing_key"] = queue
        return json.dumps(message)


def _id() -> str:
    return str(uuid.uuid4())
