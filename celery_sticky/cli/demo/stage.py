"""The sending side of the demo, and snapshots of its state: owners, running orders, charged orders."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_sticky.app import Sticky
from celery_sticky.cli.demo.app import SLOTS, TASK, Demo, make_app
from celery_sticky.cli.demo.crew import short
from celery_sticky.cli.session import Session
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.ownership.view import View
from celery_sticky.stores.first_document import write_first
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder


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
class DemoCluster:
    """Sends the orders, and observes the demo."""

    demo: Demo
    orders: Sequence[Mapping[str, Any]]
    total: int
    began: float = field(default_factory=time.monotonic)
    news: list[tuple[float, str]] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)
    published: int = 0
    app: Any = field(init=False)
    session: Session = field(init=False)
    recorder: Recorder = field(init=False)
    slot_of: dict[str, int] = field(init=False)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.app = make_app(self.demo)
        self.session = Session(self.app)
        self.recorder = Recorder(self.demo.history)
        sticky = Sticky.of(self.app)
        self.slot_of = {shop: sticky.slot_for(shop) for shop in sorted({order["shop"] for order in self.orders})}

    def initialise(self) -> None:
        """Write the first document, as `celery sticky init` does."""
        write_first(self.session.store(DEFAULT_KEYSPACE), SLOTS)

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
            shop = order["shop"]
            self._numbers[shop] += 1
            n = self._numbers[shop]
            duration = seconds * (0.5 + self.published % 7 / 6)
            result = self.app.tasks[TASK].apply_async((shop, n, order, duration))
            self.recorder.published(shop, n, result.id)
            self.published += 1

    def view(self) -> View:
        """Return the ownership document."""
        view = self.session.store(DEFAULT_KEYSPACE).read().view
        assert view is not None
        return view

    def events(self) -> list[Event]:
        """Return the history so far."""
        return self.recorder.events()

    def finished(self) -> int:
        """Return the number of orders charged so far."""
        ends = (event for event in self.events() if event.kind is Kind.END and event.finished)
        return len({event.task for event in ends})

    def scene(self) -> Scene:
        """Return a snapshot of the current state."""
        view, events = self.view(), self.events()
        open_runs = {event.run: event for event in events if event.kind is Kind.START}
        done: dict[tuple[str, str, int], str] = {}
        for event in events:
            if event.kind is Kind.END:
                open_runs.pop(event.run, None)
                done.setdefault(event.task, short(event.worker))
        gone = Counter(key for _, key, _ in done)
        running: dict[str, list[str]] = {}
        for event in open_runs.values():
            if self.workers.get(short(event.worker)) != "killed":
                running.setdefault(short(event.worker), []).append(event.key)
        return Scene(
            elapsed=self.elapsed,
            published=self.published,
            total=self.total,
            workers=dict(self.workers),
            slots=Counter(short(name) for name in view.owner if name is not None),
            owners={shop: short(view.owner[slot] or "") or None for shop, slot in self.slot_of.items()},
            left={shop: self._numbers[shop] - gone[shop] for shop in self.slot_of},
            running=running,
            done=Counter(done.values()),
            news=tuple(self.news),
        )

    def close(self) -> None:
        """Close every connection."""
        self.session.__exit__(None, None, None)
        self.app.close()
