"""Sign up sixty users, some of them twice, and kill a worker meanwhile. Exit with 1 if somebody gets two mails."""

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from aiosmtpd.controller import Controller
from werkzeug.serving import make_server

HERE = Path(__file__).parent
USERS = [f"user{number}@example.com" for number in range(60)]


class Mailbox:
    """A mail server that counts what each recipient gets."""

    def __init__(self) -> None:
        self.mails: Counter[str] = Counter()

    async def handle_DATA(self, server, session, envelope) -> str:  # noqa: N802
        self.mails.update(envelope.rcpt_tos)
        return "250 OK"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "shop", *words]


def start(name: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            celery("worker", "-n", f"{name}@%h", "-P", "threads", "-c", "2"), cwd=HERE, stdout=file, stderr=file
        )


def sign_up(port: int, email: str) -> int:
    """Sign up as a browser does; return the status."""
    request = Request(f"http://127.0.0.1:{port}/users", json.dumps({"email": email}).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status
    except HTTPError as refused:
        return refused.code


def abandoned() -> list[str]:
    told = subprocess.run(celery("sticky", "abandoned", "list", "--json"), cwd=HERE, capture_output=True, check=True)
    return sorted(one["key"] for one in json.loads(told.stdout)["messages"])


def wait(what: str, happened: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def main(folder: Path) -> int:
    box = Mailbox()
    mails = Controller(box, hostname="127.0.0.1", port=free_port())
    mails.start()
    os.environ["DATABASE"] = str(folder / "shop.db")
    os.environ["SMTP_PORT"] = str(mails.port)
    sys.path.insert(0, str(HERE))
    from web import web

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, web, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    subprocess.run(celery("sticky", "init"), cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    workers = {name: start(name, folder / f"{name}.log") for name in ("one", "two")}
    try:
        answers = Counter(sign_up(server.port, email) for email in [*USERS, *USERS[:10]])
        print(f"{answers[201]} users signed up, {answers[409]} sign-ups were refused")
        wait("a third of the mails is sent", lambda: len(box.mails) > len(USERS) / 3)
        workers["one"].kill()
        print("worker one is killed (SIGKILL)")
        wait("each mail is sent or listed", lambda: len(box.mails.keys() | set(abandoned())) == len(USERS))
        listed = abandoned()
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait()
        server.shutdown()
        mails.stop()

    twice = [email for email, count in box.mails.items() if count > 1]
    print(f"{len(box.mails)} users got their mail, {len(twice)} got it twice")
    print(f"{len(listed)} mails may have been sent when the worker died: celery -A shop sticky abandoned list")
    return 1 if twice else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made)))
