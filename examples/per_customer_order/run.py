"""Charge the orders of six customers with two workers and kill one halfway. Exit with 1 if a promise is broken."""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import redis

CUSTOMERS = ("ada", "bob", "cyd", "dan", "eve", "fay")
ORDERS = 20
HERE = Path(__file__).parent


def celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "shop", *words]


def start(name: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        command = celery("worker", "-n", f"{name}@%h", "-c", "4", "--without-gossip", "--without-mingle")
        return subprocess.Popen(command, cwd=HERE, stdout=file, stderr=file)


def wait(what: str, happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def main(folder: Path) -> int:
    os.environ["JOURNAL"] = str(folder / "journal.jsonl")
    prefix = os.environ["KEY_PREFIX"] = f"per-customer-order-{os.getpid()}:"
    sys.path.insert(0, str(HERE))
    from shop import app, charge, journal

    from celery_sticky.testing.judge import judge

    def runs() -> list:
        return [event for event in journal.events() if event.kind == "start"]

    subprocess.run(celery("sticky", "init"), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    workers = {name: start(name, folder / f"{name}.log") for name in ("one", "two")}
    try:
        for number in range(1, ORDERS + 1):
            for customer in CUSTOMERS:
                order = {"customer": customer, "number": number, "seconds": 0.1}
                journal.published(customer, number, charge.delay(order).id)
        print(f"{ORDERS} orders of each of {len(CUSTOMERS)} customers are sent")

        wait("both workers charge orders", lambda: len({event.worker for event in runs()}) == 2)
        wait("a third is charged", lambda: len(runs()) > ORDERS * len(CUSTOMERS) / 3)
        victim = runs()[-1].worker
        workers[victim.partition("@")[0]].kill()
        print(f"{victim} is killed (SIGKILL)")

        wait("every order is charged", lambda: not judge(journal.events()).lost)
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait()
        with redis.Redis.from_url(app.conf.broker_url) as client:
            for key in client.scan_iter(f"{prefix}*"):
                client.delete(key)

    for customer in CUSTOMERS:
        mine = [event for event in runs() if event.key == customer]
        by = ", then ".join(f"{worker} ({count})" for worker, count in Counter(event.worker for event in mine).items())
        print(f"{customer}: {' '.join(str(event.n) for event in mine)}   by {by}")
    found = judge(journal.events())
    print(found.describe())
    return 0 if found.ok else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
