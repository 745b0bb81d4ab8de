"""What grows with a keyspace, and what does not: messages in moved slots, and worker processes."""

from __future__ import annotations

from benchmarks import crowd, handover
from benchmarks.report import Report
from benchmarks.server import Server


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure both."""
    handover.run(server, report, quick=quick)
    crowd.run(server, report, quick=quick)
