"""The options of one run, as given on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_sticky.cli.verify.placed import Placed
from celery_sticky.cli.verify.site import Mode
from celery_sticky.testing.servers import Kind

if TYPE_CHECKING:
    from celery_sticky.cli.verify.faults.base import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command line."""

    mode: Mode = Mode.STICKY
    server: Kind = Kind.VALKEY
    """The kind of the servers that are started here."""
    broker: str | None = None
    store: str | None = None
    """URL of a separate store; empty: the broker; None: the broker if one is given, else a server started here."""
    pool: str = "prefork"
    concurrency: int = 2
    workers: int = 4
    keys: int = 200
    rate: float = 40.0
    seconds: float = 60.0
    faults: tuple[type[Fault], ...] = ()
    seed: int = 0
    ttl: float = 3.0
    slots: int = 64
    jobs: int = 20
    isolated: bool = False
    """Whether the bad jobs are declared isolated."""
    placed: Placed | None = None

    @property
    def eviction_timeout(self) -> float:
        """Seconds after which a silent worker is evicted."""
        return self.ttl * 1.27

    @property
    def own_is_both(self) -> bool:
        """Whether one server that is started here is the broker and the store."""
        return self.mode is Mode.STICKY and self.broker is None and self.store == ""

    @property
    def single(self) -> bool:
        """Whether a worker runs one task at a time, regardless of `concurrency`."""
        return self.mode is Mode.HASH or self.pool == "solo"

    @property
    def capacity(self) -> int:
        """Number of tasks that the initial workers can run at a time."""
        return self.workers * (1 if self.single else self.concurrency)
