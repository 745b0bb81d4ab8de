"""Send to six WebSocket clients at two front ends while they move. Exit with 1 if a text is lost or misdelivered."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import redis
from celery import Task
from celery.result import AsyncResult
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from celery_sticky import NotPinned

CLIENTS = ("ada", "bob", "cyd", "dan", "eve", "fay")
HERE = Path(__file__).parent


def celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "front_end", *words]


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PORT_FILE": str(folder / f"{name}.port")}
    words = ("worker", "-n", f"{name}@%h", "-P", "threads", "-c", "4", "--without-gossip", "--without-mingle")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(celery(*words), cwd=HERE, env=environment, stdout=log, stderr=log)


def wait(what: str, happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


class Client:
    """A WebSocket client, and the texts that it received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: ClientConnection | None = None
        self.received: list[str] = []

    def connect(self, port: int) -> None:
        """Connect or reconnect, and wait until the front end has accepted the client."""
        old = self.connection
        wait(f"a front end takes {self.name}", lambda: self._is_taken(port))
        if old is not None:
            old.close()

    def _is_taken(self, port: int) -> bool:
        welcome, answered = threading.Event(), threading.Event()

        def listen() -> None:
            with suppress(ConnectionClosed), connect(f"ws://127.0.0.1:{port}", proxy=None) as connection:
                self.connection = connection
                connection.send(self.name)
                for text in connection:
                    if text == "welcome":  # not always first: the client is pinned before it
                        welcome.set()
                        answered.set()
                    else:
                        self.received.append(text)
            answered.set()  # the front end has refused the client

        threading.Thread(target=listen, daemon=True).start()
        return answered.wait(10) and welcome.is_set()


class Sender:
    """Sends to clients by name, without knowing their front ends."""

    def __init__(self, push: Task) -> None:
        self._push = push
        self.sent: dict[str, list[str]] = {name: [] for name in CLIENTS}

    def send(self, names: Iterable[str], text: str) -> dict[str, AsyncResult]:
        for name in names:
            self.sent[name].append(f"{text}, {name}")
        return {name: self._push.delay(name, self.sent[name][-1]) for name in names}

    def refuses(self, name: str) -> bool:
        try:
            self._push.delay(name, "hello")
        except NotPinned:
            return True
        return False


def show(results: dict[str, AsyncResult]) -> None:
    for name, result in results.items():
        print(f"  to {name}: {result.get(timeout=30)}")


def ports_of(names: Iterable[str], folder: Path) -> dict[str, int]:
    ports = {}
    for name in names:
        file = folder / f"{name}.port"
        wait(f"{name} serves clients", lambda file=file: file.exists() and file.read_text() != "")
        ports[name] = int(file.read_text())
    return ports


def play(
    sender: Sender,
    clients: dict[str, Client],
    front_ends: dict[str, subprocess.Popen[bytes]],
    at: dict[str, int],
    folder: Path,
) -> None:
    for name in CLIENTS:
        clients[name].connect(at["one" if name in ("ada", "bob", "cyd") else "two"])
    print("ada, bob and cyd are at one, dan, eve and fay at two")
    show(sender.send(CLIENTS, "hello"))

    clients["ada"].connect(at["two"])
    print("ada is at two")
    show(sender.send(["ada"], "hello again"))

    clients["fay"].connect(at["two"])
    ended = folder / "two.log"
    wait("two ends the old connection of fay", lambda: "a connection of fay has ended" in ended.read_text())
    print("fay has reconnected at two, and her old connection has ended after that")
    show(sender.send(["fay"], "welcome back"))

    front_ends["one"].kill()
    early = sender.send(["bob"], "where are you")
    for name in ("bob", "cyd"):
        clients[name].connect(at["two"])
    print("one is killed (SIGKILL), bob and cyd are at two")
    show(sender.send(CLIENTS, "still there"))
    print("the text that was sent to bob before he was at two")
    show(early)

    if not sender.refuses("gus"):
        raise SystemExit("gus is not connected, but a text to gus was accepted")
    print("to gus, who is not connected: refused")
    time.sleep(0.5)  # time for texts that should not arrive


def judge(sent: dict[str, list[str]], clients: dict[str, Client]) -> int:
    # Compare sets: a text that was on its way when its front end was killed may arrive twice.
    wrong = [name for name in CLIENTS if set(clients[name].received) != set(sent[name])]
    for name in wrong:
        print(f"{name} was sent {sent[name]} and received {clients[name].received}")
    print(
        f"{sum(map(len, sent.values()))} texts sent, {len(wrong)} of {len(CLIENTS)} clients missed one or got another's"
    )
    return 1 if wrong else 0


def main(folder: Path) -> int:
    prefix = os.environ["KEY_PREFIX"] = f"reverse-routing-{os.getpid()}:"
    sys.path.insert(0, str(HERE))
    from front_end import app, push

    clients, sender = {name: Client(name) for name in CLIENTS}, Sender(push)
    subprocess.run(celery("sticky", "init"), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    front_ends = {name: start(name, folder) for name in ("one", "two")}
    try:
        play(sender, clients, front_ends, ports_of(front_ends, folder), folder)
    finally:
        for worker in front_ends.values():
            worker.terminate()
        for worker in front_ends.values():
            worker.wait()
        with redis.Redis.from_url(app.conf.broker_url) as server:
            for key in server.scan_iter(f"{prefix}*"):
                server.delete(key)
    return judge(sender.sent, clients)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
