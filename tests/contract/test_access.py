"""What `doctor` says of a Redis user's rights, on every server; and that what it asks for is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.programs import every_program
from kombu import Connection

import celery_sticky
from celery_sticky.cli.access import EVERYTHING, KEYLESS, SCRIPTED, access_findings
from celery_sticky.testing.server import ValkeyServer

PASSWORD = "pw"
PACKAGE = Path(celery_sticky.__file__).parent


@pytest.fixture(scope="module", params=every_program())
def server(request: pytest.FixtureRequest) -> Iterator[ValkeyServer]:
    made = ValkeyServer(request.getfixturevalue("guard"), program=request.param).start()
    yield made
    made.teardown()


@pytest.fixture
def found(server: ValkeyServer) -> Callable[..., str]:
    def look(*rules: str) -> str:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "bob", "reset", "on", f">{PASSWORD}", *rules)
        connection = Connection(server.url.replace("//", f"//bob:{PASSWORD}@"))
        return " ".join(finding.text for finding in access_findings("broker", connection, "sticky"))

    return look


@pytest.mark.parametrize("rules", ["~* &* +@all", EVERYTHING])
def test_who_may_do_everything_is_not_told_anything_and_nothing_is_left_behind(
    server: ValkeyServer, found: Callable[..., str], rules: str
) -> None:
    with server.client() as client:
        client.flushall()
        client.set("x", "somebody's")
        assert found(*rules.split()) == ""
        assert client.keys() == ["x"] and client.get("x") == "somebody's"


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ("~* &* +@all -time -hincrby", "ACL SETUSER bob +hincrby +time ("),
        ("~* &* +@all -eval", "ACL SETUSER bob +eval ("),
        ("~* &* +@all -brpop -multi", "ACL SETUSER bob +brpop +multi +exec ("),
        ("&* +@all", "ACL SETUSER bob ~sticky* ("),
        ("~* +@all resetchannels", "ACL SETUSER bob &sticky* ("),
        ("~* &* +@read +@write", "ACL SETUSER bob +ping +info +eval +evalsha +script|load +publish +subscribe +multi"),
    ],
)
def test_what_is_missing_is_told_as_a_line_that_mends_it(found: Callable[..., str], rules: str, line: str) -> None:
    said = found(*rules.split())
    assert line in said, said
    missing = re.search(r"ACL SETUSER bob (.*?) \(", said)
    assert missing is not None
    while mended := found(*rules.split(), *missing[1].split()):  # who may run scripts is told of their commands too
        more = re.search(r"ACL SETUSER bob (.*?) \(", mended)
        assert more is not None
        rules, missing = f"{rules} {missing[1]}", more


def test_every_command_of_a_script_is_tried() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.lua"))
    used = set(re.findall(r"redis\.p?call\('([A-Z]+)'", text))
    assert used <= {*SCRIPTED, *KEYLESS, "DEL"}, "add them to celery_sticky/cli/access.py"
