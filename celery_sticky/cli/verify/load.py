"""One sender: a process that publishes numbered tasks, and extra ones as ordered on stdin, until stdin closes."""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from celery.utils import uuid

from celery_sticky.cli.verify.app import RECORD
from celery_sticky.cli.verify.faults import BY_NAME
from celery_sticky.cli.verify.faults.mixed_in import MixedIn
from celery_sticky.cli.verify.faults.orders import Order
from celery_sticky.cli.verify.malformed import MALFORMED, well_formed
from celery_sticky.cli.verify.publisher import Publisher
from celery_sticky.cli.verify.site import Site
from celery_sticky.errors import StickyError
from celery_sticky.keys import queue_name, slot_for

VARIABLE = "STICKY_VERIFY_LOAD"
SHORTEST = 0.002
"""Shortest duration of an ordinary task, in seconds."""
APART = 8
"""Number of separate keys for tasks with an ETA, and for tasks that retry. They take their place in the order only
when they are due."""
SELDOM = 0.04
"""Share of the tasks that each special kind has."""
PAUSE = 0.2
"""Pause after a failed send, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that one sender produces."""

    sender: int
    senders: int
    seed: int
    rate: float
    """Tasks per second."""
    keys: int
    longest: float
    """Longest duration of an ordinary task, in seconds."""
    kinds: Collection[str]
    """Names of the special kinds of tasks in the load."""

    def environ(self) -> dict[str, str]:
        """Return the environment variable for the process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read what `environ` wrote."""
        return cls(**json.loads(environ[VARIABLE]))


def load_keys(keys: int) -> list[str]:
    """Return all keys of a load with this many ordinary keys, including those of the first poison messages."""
    return [*(f"k{number}" for number in range(keys)), *sorted(apart()), *(f"oom{number}" for number in range(1, 9))]


def apart() -> frozenset[str]:
    """Return the keys whose tasks take their place in the order only when they are due."""
    return frozenset(f"{kind}{number}" for kind in ("eta", "retry") for number in range(APART))


class Sender:
    """Publishes the load, and what it is ordered to publish."""

    def __init__(self, site: Site, load: Load) -> None:
        self._site, self._load = site, load
        self._publisher = Publisher(site, sender=load.sender, senders=load.senders)
        self._kinds = [kind for name in load.kinds if issubclass(kind := BY_NAME[name], MixedIn)]
        self.draw = random.Random(f"{load.seed}-{load.sender}")

    def ordinary(self) -> None:
        """Send one task of the usual mix."""
        chance, key = self.draw.random(), self.any_key()
        seconds = self.draw.uniform(SHORTEST, max(SHORTEST, self._load.longest))
        for kind in self._kinds:
            if chance < SELDOM:
                kind.send(self, key, self.draw.randrange(APART), seconds)
                return
            chance -= SELDOM
        self.send(RECORD, key, seconds)

    def any_key(self) -> str:
        """Choose an ordinary key."""
        return f"k{self.draw.randrange(self._load.keys)}"

    def obey(self, order: Mapping[str, Any]) -> None:
        """Carry out an order."""
        kind = BY_NAME[order["send"]]
        assert issubclass(kind, Order)
        kind(**{name: value for name, value in order.items() if name != "send"}).send(self)

    def send(self, task: str, key: str, seconds: float, **options: Any) -> None:
        """Send the next task of a key, once; after a failure go on with the next one."""
        try:
            self._publisher.publish(task, key, seconds, **options)
        except StickyError as error:  # refused before the broker was asked
            print(f"sender {self._load.sender}: {key}: {error}", file=sys.stderr)  # noqa: T201
        except Exception as error:  # from Kombu, its transport, redis-py or the socket
            print(f"sender {self._load.sender}: {key}: {error!r}", file=sys.stderr)  # noqa: T201
            time.sleep(PAUSE)

    def send_malformed(self, wrong: str, key: str) -> None:
        """Put a message that no worker can read directly into the slot queue of a key, and record it."""
        site, tag = self._site, f"{wrong} {uuid()}"
        envelope = well_formed(RECORD, [key, 0, 0.01], key=key, slots=site.slots, keyspace=site.keyspace)
        MALFORMED[wrong](envelope)
        slot = queue_name(site.keyspace, slot_for(key, site.slots))
        try:
            with self._publisher.app.connection_for_write() as connection:
                connection.default_channel._put(slot, {**envelope, "malformed": tag})
        except Exception as error:  # as in `send`
            print(f"sender {self._load.sender}: malformed {tag}: {error!r}", file=sys.stderr)  # noqa: T201
            time.sleep(PAUSE)
            return
        with site.malformed_history.open("a") as history:
            history.write(json.dumps(tag) + "\n")

    def close(self) -> None:
        """Close the connections."""
        self._publisher.close()


def serve(sender: Sender, rate: float) -> None:
    """Send until stdin closes."""
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    due = time.monotonic()
    while True:
        try:
            line = orders.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            sender.ordinary()
            due = max(due + 1 / rate, time.monotonic() - 1.0)
            continue
        if not line:
            return
        sender.obey(json.loads(line))


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    orders.put("")


if __name__ == "__main__":
    load = Load.from_environ(os.environ)
    sending = Sender(Site.from_environ(os.environ), load)
    serve(sending, load.rate)
    sending.close()
