"""Loads a database: copies of a message that Celery has published."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import defaultdict
from itertools import islice
from typing import Any

from benchmarks.app import make_app
from benchmarks.server import SLOTS
from benchmarks.sql.engines import database
from celery_sticky import queue_for, slot_for
from celery_sticky.keys import queue_name
from celery_sticky.queues.sql import publish
from celery_sticky.sql import Database

PIECE = 5000
"""Copies that are made at a time."""
LOAD = 50_000
"""Most rows that one statement copies."""


class Copies:
    """Copies of a message of the task `count`, each with its own id. `side`: with keys (`sticky`), or without."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._message = _published(side)
        self._embed = json.loads(self._message["body"])[2]

    def one(self, key: str) -> bytes:
        """Return a copy for a key."""
        message, headers, properties = self._message, self._message["headers"], self._message["properties"]
        message["body"] = json.dumps([[key], {}, self._embed])
        headers["id"] = headers["root_id"] = properties["correlation_id"] = str(uuid.uuid4())
        properties["delivery_tag"] = str(uuid.uuid4())
        properties["delivery_info"]["routing_key"] = self.queue(key)
        if self._side == "sticky":
            headers["sticky"] |= {"key": key, "slot": slot_for(key, SLOTS)}
        return json.dumps(message).encode()

    def queue(self, key: str) -> str:
        """Return the queue that a key's messages go to."""
        return queue_for(key) if self._side == "sticky" else f"bench-{self._side}"

    def fill(self, where: Database, number: int, keys: int) -> None:
        """Put messages of these many keys, in turn, into their queues."""
        names = (f"k{n % keys}" for n in range(number))
        while piece := list(islice(names, PIECE)):
            queues = defaultdict[str, list[bytes]](list)
            for key in piece:
                queues[self.queue(key)].append(self.one(key))
            for queue, bodies in queues.items():
                publish(where, queue, bodies)


def load(where: Database, number: int, slots: int) -> None:
    """Put as many copies of one message into slot queues: a few are published, then rows are copied in bulk."""
    body = Copies("sticky").one("k0")
    first = max(1, min(number, 200) // slots)
    for slot in range(slots):
        publish(where, queue_name("default", slot), [body] * first)
    there = first * slots
    while there < number:
        more = min(there, number - there, LOAD)
        where.run(
            "INSERT INTO {message} (queue, priority, body) SELECT queue, priority, body FROM {message} LIMIT %s", [more]
        )
        there += more


def _published(side: str) -> dict[str, Any]:
    """Return a message as it is sent, from a database that no worker reads."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/model.db"
        app = make_app(f"sticky+{url}", side)
        app.tasks["count"].apply_async(("model",))
        app.close()
        where = database(url)
        message: dict[str, Any] = json.loads(_only(where.rows("SELECT body FROM {message}")))
        where.close()
    return message


def _only(rows: list[tuple[Any, ...]]) -> bytes:
    ((body,),) = rows
    return bytes(body)
