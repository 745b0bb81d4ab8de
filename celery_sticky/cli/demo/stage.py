"""The demo's cluster, a preset of `verify`'s: what it sends, and snapshots of its state for the screen."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from celery_sticky.cli.verify.app import RECORD
from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.publisher import Publisher
from celery_sticky.cli.verify.site import short
from celery_sticky.keys import slot_for
from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind

SLOTS = 120
PRESET = RunOptions(store="", concurrency=2, slots=SLOTS, ttl=3.0, jobs=0)
"""The options of the demo's cluster, apart from its broker and the number of workers."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A snapshot of the demo at one moment."""

    elapsed: float
    published: int
    total: int
    workers: Mapping[str, str]
    """Name -> state, as shown."""
    slots: Mapping[str, int]
    """Worker -> number of slots it owns."""
    owners: Mapping[str, str | None]
    """Shop -> worker."""
    left: Mapping[str, int]
    """Shop -> number of orders that wait or run."""
    running: Mapping[str, Sequence[str]]
    """Worker -> shops whose orders it is charging."""
    done: Mapping[str, int]
    """Worker -> number of orders charged."""
    news: Sequence[tuple[float, str]]


@dataclass(slots=True)
class Stage:
    """Sends the orders, and observes the demo."""

    cluster: Cluster
    orders: Sequence[Mapping[str, Any]]
    total: int
    began: float = field(default_factory=time.monotonic)
    news: list[tuple[float, str]] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)
    published: int = 0
    observer: Observer = field(init=False)
    slot_of: dict[str, int] = field(init=False)
    _publisher: Publisher = field(init=False)
    _view: View | None = None

    def __post_init__(self) -> None:
        site = self.cluster.site
        self.observer = Observer(site, self.cluster.servers.broker)
        self._publisher = Publisher(site)
        self.slot_of = {shop: slot_for(shop, SLOTS) for shop in sorted({order["shop"] for order in self.orders})}

    def tell(self, text: str) -> None:
        """Add a line to the news."""
        self.news.append((self.elapsed, text))

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def publish(self, upto: int, seconds: float) -> None:
        """Send orders until `upto` have been sent; each takes about `seconds` to charge."""
        while self.published < min(upto, self.total):
            order = self.orders[self.published % len(self.orders)]
            duration = seconds * (0.5 + self.published % 7 / 6)
            self._publisher.publish(RECORD, order["shop"], duration, headers={"order": dict(order)})
            self.published += 1

    def view(self) -> View:
        """Return the ownership document, as it was when the store last answered."""
        self._view = self.observer.view() or self._view
        assert self._view is not None, "the document was written first"
        return self._view

    def finished(self) -> int:
        """Return the number of orders charged so far."""
        ends = (event for event in self.observer.events() if event.kind is Kind.END and event.finished)
        return len({event.task for event in ends})

    def scene(self) -> Scene:
        """Return a snapshot of the current state."""
        view, events = self.view(), self.observer.events()
        done = _charged(events)
        gone = Counter(key for _, key, _ in done)
        return Scene(
            elapsed=self.elapsed,
            published=self.published,
            total=self.total,
            workers=dict(self.workers),
            slots=Counter(short(name) for name in view.owner if name is not None),
            owners={shop: short(view.owner[slot] or "") or None for shop, slot in self.slot_of.items()},
            left={shop: self._publisher.count[shop] - gone[shop] for shop in self.slot_of},
            running=self._running(events),
            done=Counter(done.values()),
            news=tuple(self.news),
        )

    def _running(self, events: Sequence[Event]) -> dict[str, list[str]]:
        """Return the shops whose orders each live worker is charging."""
        ended = {event.run for event in events if event.kind is Kind.END}
        running: dict[str, list[str]] = {}
        for event in events:
            if (
                event.kind is Kind.START
                and event.run not in ended
                and self.workers.get(short(event.worker)) != "killed"
            ):
                running.setdefault(short(event.worker), []).append(event.key)
        return running

    def close(self) -> None:
        """Close every connection."""
        self._publisher.close()
        self.observer.close()


def _charged(events: Sequence[Event]) -> dict[tuple[str, str, int], str]:
    """Return the worker that first charged each order."""
    done: dict[tuple[str, str, int], str] = {}
    for event in events:
        if event.kind is Kind.END:
            done.setdefault(event.task, short(event.worker))
    return done


def read_orders() -> list[dict[str, Any]]:
    """Return the orders that are part of the package."""
    text = files(__package__).joinpath("orders.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
