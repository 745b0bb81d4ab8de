"""Sync six tenants with two workers: remove one, add one, kill a worker. Exit with 1 if a promise is broken."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis

HERE = Path(__file__).parent


def celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "sync", *words]


def start(name: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        command = celery(
            "worker", "-n", f"{name}@%h", "-P", "threads", "-c", "2", "--without-gossip", "--without-mingle"
        )
        return subprocess.Popen(command, cwd=HERE, stdout=file, stderr=file)


def wait(what: str, happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def main(folder: Path) -> int:
    os.environ["JOURNAL"], os.environ["TENANTS"] = str(folder / "journal.jsonl"), str(folder / "tenants.txt")
    prefix = os.environ["KEY_PREFIX"] = f"tenant-sync-{os.getpid()}:"
    sys.path.insert(0, str(HERE))
    from sync import app, journal, sticky, tenants

    def synced() -> dict[str, str]:
        infos = sticky.jobs.list("sync")
        return {info.key: info.worker for info in infos if info.state == "running"}

    def show(what: str) -> None:
        print(what)
        for worker in sorted(set(synced().values())):
            print(f"  {worker} syncs {' '.join(key for key, at in sorted(synced().items()) if at == worker)}")

    tenants.write_text("ada bob cyd dan eve fay")
    subprocess.run(celery("sticky", "init"), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    workers = {name: start(name, folder / f"{name}.log") for name in ("one", "two")}
    try:
        wait("two workers sync six tenants", lambda: len(synced()) == 6 and len(set(synced().values())) == 2)
        show("six tenants")
        tenants.write_text("ada cyd dan eve fay gus")
        wait(
            "bob's sync has stopped, gus has one", lambda: synced().keys() == {"ada", "cyd", "dan", "eve", "fay", "gus"}
        )
        show("bob was removed, gus was added")
        victim = synced()["ada"]
        workers[victim.partition("@")[0]].kill()
        wait("the other worker syncs all six", lambda: len(synced()) == 6 and victim not in synced().values())
        show(f"{victim} was killed (SIGKILL)")
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait()
        sticky.jobs.close()
        with redis.Redis.from_url(app.conf.broker_url) as client:
            for key in client.scan_iter(f"{prefix}*"):
                client.delete(key)
    return judged(journal.events())


def judged(events: list) -> int:
    """Print how many syncs overlapped another of their tenant, and how many pages were left out; return 1 if any.

    A killed sync has no end event.
    """
    starts = [event for event in events if event.kind == "start"]
    ends = {event.run: event.at for event in events if event.kind == "end"}
    twice = [
        later.key
        for earlier in starts
        for later in starts
        if later.key == earlier.key and earlier.at < later.at < ends.get(earlier.run, 0)
    ]
    print(f"{len(starts)} syncs were started, {len(twice)} while another of the same tenant ran")
    again, left_out = pages([event for event in events if event.kind == "published"])
    print(f"{again} pages were read again after the kill, {left_out} were left out")
    return 1 if twice or left_out else 0


def pages(read: list) -> tuple[int, int]:
    """Return how many pages were read again, and how many were left out."""
    again = left_out = 0
    due = dict.fromkeys((event.key for event in read), 0)
    for event in read:
        again += event.n < due[event.key]
        left_out += max(0, event.n - due[event.key])
        due[event.key] = event.n + 1
    return again, left_out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
