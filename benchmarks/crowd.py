"""Many worker processes on one server: their load when idle, and how fast they redistribute the slots."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.app import SIDES
from benchmarks.idle import BREATH, OURS
from benchmarks.report import Report, Table
from benchmarks.server import SLOTS, Server
from benchmarks.throughput import prepared
from benchmarks.workers import Pool, Worker, running, stamps
from celery_sticky.drivers import open_store
from celery_sticky.testing.waiting import wait_until

SOLO = Pool("solo", 1)
AT_ONCE = 3
"""Workers that may start at the same time. The import of Celery dominates the cost of a start."""
TIMEOUT = 120.0


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure stock Celery and celery-sticky."""
    size = 16 if quick else 64
    seen = {side: measure(server, side, size, 10.0 if quick else 20.0) for side in SIDES}
    table = Table(f"{size} worker processes ({SOLO.name}) on one server", ["", *SIDES])
    for figure in seen["sticky"]:
        table.rows.append([figure, *(seen[side].get(figure, "") for side in SIDES)])
    table.notes.append(
        "Gossip, mingle and heartbeats off on either side; 256 slots; default lease (10 s and a margin of 2 s). "
        "Settled: every slot is owned by its target member."
    )
    report.tables.append(table)
    report.ratio("crowd_requests", float(seen["sticky"][REQUESTS]) / float(seen["stock"][REQUESTS]))


REQUESTS = "requests/s, idle"


def measure(server: Server, side: str, size: int, seconds: float) -> dict[str, str]:
    """Return figures by their names."""
    with tempfile.TemporaryDirectory() as folder, prepared(server, side):
        begun = time.monotonic()
        with started(server, side, size, stamps(folder)) as workers:
            workers[-1].wait_ready()
            figures = {}
            if side == "sticky":
                crowd = Crowd(server)
                after = crowd.wait_settled(size)
                figures["last worker ready to settled, s"] = f"{after:.2f}"
                figures["versions of the document, until then"] = str(crowd.version)
            figures["all started after, s"] = f"{time.monotonic() - begun:.0f}"
            time.sleep(BREATH)
            figures |= idle(server, workers, seconds)
            if side == "sticky":
                figures |= events(server, crowd, workers, stamps(folder))
                crowd.close()
    return figures


@contextmanager
def started(server: Server, side: str, size: int, log: Path) -> Iterator[list[Worker]]:
    """Start workers, a few at a time."""
    with ExitStack() as stack:
        workers: list[Worker] = []
        for number in range(size):
            worker = running(server, side, SOLO, level="INFO", name=f"w{number}", log=log)
            workers.append(stack.enter_context(worker))
            if number >= AT_ONCE:
                workers[number - AT_ONCE].wait_ready()
        yield workers


def idle(server: Server, workers: Sequence[Worker], seconds: float) -> dict[str, str]:
    """Return the cost of idle workers."""
    before, net = server.commands(), server.sent()
    start, server_cpu, cpu = time.monotonic(), server.cpu(), sum(worker.cpu() for worker in workers)
    time.sleep(seconds)
    took, server_cpu = time.monotonic() - start, server.cpu() - server_cpu
    cpu, net = sum(worker.cpu() for worker in workers) - cpu, server.sent() - net
    asked = sum(n - before.get(name, 0) for name, n in server.commands().items() if name not in OURS)
    return {
        REQUESTS: f"{server.requests(seconds) / seconds:.1f}",
        "commands/s, those inside scripts too": f"{asked / took:.1f}",
        "server CPU %": f"{server_cpu / took * 100:.2f}",
        "server sends, KiB/s": f"{net / took / 1024:.1f}",
        "CPU of a worker %": f"{cpu / took / len(workers) * 100:.2f}",
        "MiB a worker": f"{sum(worker.pss() for worker in workers) / len(workers):.0f}",
        "connections": str(server.client.info("clients")["connected_clients"] - 1),
    }


def events(server: Server, crowd: Crowd, workers: Sequence[Worker], log: Path) -> dict[str, str]:
    """Let one worker leave, one join, and one die."""
    size, figures = len(workers), {}
    workers[0].stop()
    figures["SIGTERM of one to settled, s"] = f"{crowd.wait_settled(size - 1):.2f}"
    with running(server, "sticky", SOLO, level="INFO", name="late", log=log):
        crowd.wait_members(size)
        figures["one joined to settled, s"] = f"{crowd.wait_settled(size):.2f}"
        workers[1].kill()
        figures["kill -9 of one to settled, s"] = f"{crowd.wait_settled(size - 1):.2f}"
    figures["document, bytes"] = str(crowd.document)
    return figures


class Crowd:
    """A keyspace of many members, observed through its document."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._store = open_store(server.url, "default")

    def close(self) -> None:
        self._store.close()

    @property
    def version(self) -> int:
        view = self._store.read().view
        return view.version if view else 0

    @property
    def document(self) -> int:
        """Its size in bytes."""
        return int(self._server.client.hstrlen("sticky:default:view", "document"))

    def wait_members(self, size: int) -> None:
        """Wait until there are this many members."""
        wait_until(lambda: self._members() == size, TIMEOUT, f"{size} members")

    def wait_settled(self, size: int) -> float:
        """Wait until this many members share all slots; return the seconds."""
        begun = time.monotonic()
        wait_until(lambda: self._settled(size), TIMEOUT, f"{size} members share the slots")
        return time.monotonic() - begun

    def _members(self) -> int:
        view = self._store.read().view
        return len(view.members) if view else 0

    def _settled(self, size: int) -> bool:
        view = self._store.read().view
        if view is None or len(view.members) != size or not view.settled or view.unowned:
            return False
        return all(len(view.owned_by(name)) >= SLOTS // size for name in view.members)
