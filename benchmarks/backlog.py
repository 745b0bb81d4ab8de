"""Build a large backlog fast: write copies of one published message into the slot queues in large batches."""

from __future__ import annotations

import base64
import json
import uuid
from collections import defaultdict
from collections.abc import Collection
from itertools import count, islice
from typing import Any

import redis

from benchmarks.app import make_app
from benchmarks.server import SLOTS, Server
from celery_sticky import queue_for, slot_for

PIECE = 10_000
"""Messages per round trip."""


class Copier:
    """Makes messages of a task whose only argument is its key; each has its own key and id."""

    def __init__(self, server: Server, task: str) -> None:
        self._server, self._numbers = server, count()
        self._message = _published(server.port, task)
        self._embed = json.loads(base64.b64decode(self._message["body"]))[2]

    def fill(self, number: int, slots: Collection[int] = range(SLOTS)) -> None:
        """Put this many messages into these slots, each with a new key."""
        among = set(slots)
        keys = ((key, slot) for n in self._numbers if (slot := slot_for(key := f"k{n}", SLOTS)) in among)
        for begin in range(0, number, PIECE):
            piece = defaultdict[str, list[str]](list)
            for key, slot in islice(keys, min(PIECE, number - begin)):
                queue = queue_for(key)
                piece[queue].append(self._copy(key, slot, queue))
            with self._server.client.pipeline(transaction=False) as pipe:
                for queue, bodies in piece.items():
                    pipe.lpush(queue, *bodies)
                pipe.execute()

    def _copy(self, key: str, slot: int, queue: str) -> str:
        message, headers, properties = self._message, self._message["headers"], self._message["properties"]
        message["body"] = base64.b64encode(json.dumps([[key], {}, self._embed]).encode()).decode()
        headers["id"] = headers["root_id"] = properties["correlation_id"] = properties["delivery_tag"] = _id()
        headers["sticky"] |= {"key": key, "slot": slot}
        properties["delivery_info"]["routing_key"] = queue
        return json.dumps(message)


def _published(port: int, task: str) -> dict[str, Any]:
    """Return a message as it is sent. It goes through another database, which no worker reads."""
    app = make_app(f"redis://127.0.0.1:{port}/1", "sticky")
    app.tasks[task].apply_async(("model",))
    app.close()
    with redis.Redis(port=port, db=1) as client:
        message: dict[str, Any] = json.loads(client.lpop(queue_for("model")))
        client.flushdb()
    return message


def _id() -> str:
    return str(uuid.uuid4())
