"""The reference pages say what the code says."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import click
import pytest
from harness.pages import ROOT, prose, rows

import celery_sticky
from celery_sticky.cli.main import sticky
from celery_sticky.cli.verify.faults import BY_NAME
from celery_sticky.queues.memory import MemoryQueues
from celery_sticky.queues.memory_held import HeldQueues
from celery_sticky.queues.redis import RedisQueues
from celery_sticky.queues.sql import SqlQueues
from celery_sticky.settings import NAMES, SETTING, Settings

REFERENCE = ROOT / "docs/reference"
COMMAND_PAGES = sorted(REFERENCE.glob("cli*.md"))


def test_every_setting_is_documented_with_its_default() -> None:
    text = (REFERENCE / "settings.md").read_text()
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows(text) if row[0].startswith(f"`{SETTING}")}
    defaults = {SETTING + field.name: str(field.default) for field in fields(Settings)}
    assert documented == {name: defaults[name] for name in NAMES}


def commands(group: click.Group, words: str) -> dict[str, click.Command]:
    """Return the commands of a group and its groups, by what is typed."""
    context, found = click.Context(group), dict[str, click.Command]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= commands(command, f"{words} {name}")
        elif command is not None:
            found[f"{words} {name}"] = command
    return found


COMMANDS = commands(sticky, "celery sticky")


def described(param: click.Parameter) -> tuple[str, str, str]:
    """Return a parameter as the page shows it: how it is written, its default, its help."""
    if isinstance(param, click.Argument):
        return param.make_metavar(click.Context(click.Command("x"))), "", ""
    assert isinstance(param, click.Option)
    metavar = param.metavar or re.sub(r" RANGE$", "", param.type.name.upper())
    shown = param.opts[-1] if param.is_flag else f"{param.opts[-1]} {metavar}"
    default = (
        "" if param.is_flag or param.multiple or not isinstance(param.default, str | int | float) else param.default
    )
    return shown, str(default), param.help or ""


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_documented_with_its_options(words: str) -> None:
    text = "\n".join(page.read_text() for page in COMMAND_PAGES)
    _, _, section = text.partition(f"\n## {words}\n")
    assert section, f"there is no section {words!r}"
    section = section.partition("\n## ")[0]
    command = COMMANDS[words]
    first = (command.help or "").strip().split("\n\n")[0]
    assert section.strip().startswith(" ".join(first.split()))
    documented = [tuple(cell.strip("`") for cell in row) for row in rows(section) if row[0].startswith("`")]
    wanted = [described(param) for param in command.params if getattr(param, "help_group", None) != "Global Options"]
    assert documented == [param for param in wanted if param[0] != "--help"]


def test_no_command_is_documented_that_is_not_there() -> None:
    headings = re.findall(r"^## (celery .*)$", "\n".join(page.read_text() for page in COMMAND_PAGES), re.MULTILINE)
    assert headings and set(headings) == set(COMMANDS)


def test_every_public_name_is_documented() -> None:
    text = "".join((REFERENCE / page).read_text() for page in ("signals-and-api.md", "jobs-api.md"))
    public = [name for name in celery_sticky.__all__ if name != "__version__"]
    assert [name for name in public if f"`{name}" not in text and f"celery_sticky.{name}" not in text] == []


def test_the_guarantees_of_the_drivers_are_those_on_the_page() -> None:
    found = {row[0]: row[1:] for row in rows((REFERENCE / "drivers.md").read_text())}
    drivers: dict[str, Any] = {
        "Redis, Valkey": RedisQueues,
        "PostgreSQL, MySQL, MariaDB, SQLite": SqlQueues,
        "memory (tests)": MemoryQueues,
        "memory, held by connections (tests of drivers)": HeldQueues,
    }
    assert set(drivers) < set(found)
    for name, driver in drivers.items():
        promised = driver.guarantees
        needed = (promised.fenced, promised.ordered, promised.atomic, promised.deferred, promised.moves)
        kept = [*needed, promised.counts_starts, promised.claims_runs, promised.epochs_outlive_store]
        said = [promised.fence.value, ", ".join(map(str, promised.priorities))]
        assert found[name] == [*("yes" if one else "no" for one in kept), *said]


@pytest.mark.parametrize("name", ["protocol", "ledger", "placement", "failures", "job-notifications"])
def test_the_tests_that_guard_what_is_promised_are_there(name: str) -> None:
    page = (ROOT / f"docs/explanation/{name}.md").read_text()
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "celery_sticky/testing").rglob("*.py")]
    there = set(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in sources)))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named and named <= there, f"no such tests: {sorted(named - there)}"


def test_every_fault_of_verify_is_on_its_page() -> None:
    described = " ".join(row[0] for row in rows((ROOT / "docs/how-to/verify.md").read_text()))
    assert [name for name in BY_NAME if f"`{name}`" not in described] == []


def test_the_page_on_testing_names_every_module_of_it() -> None:
    page = (REFERENCE / "testing.md").read_text()
    there = {path.name for path in (ROOT / "celery_sticky/testing").iterdir()} - {"__init__.py", "__pycache__"}
    assert {name for name in there if f"`{name}`" not in page} == set()


def test_the_map_of_the_code_names_what_is_there_and_leaves_no_room_out() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    package = ROOT / "celery_sticky"
    named = set(re.findall(r"\b(\w+\.(?:py|lua))\b", page))
    assert named <= {path.name for path in package.rglob("*")}
    for room in ("ownership", "platform", "delivery", "membership", "placement", "jobs", "execution", "bootsteps"):
        essential = {path.name for path in (package / room).rglob("*.py")} - {"__init__.py"}
        assert essential - named <= SMALL, f"{room}: not on the map: {sorted(essential - named - SMALL)}"


SMALL = {"envelope.py", "native.py", "spawn.py", "outbox.py", "rounds.py", "eta.py", "context.py", "shield.py"}
"""Modules that serve one other."""


def test_every_test_that_a_page_names_is_there() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    folders = (ROOT / "tests", ROOT / "celery_sticky/testing")
    code = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", pages))
    assert len(named) > 40
    assert not [name for name in named if f"def {name}(" not in code]


def test_the_glossary_stands_in_alphabetical_order() -> None:
    words = [row[0].strip("*") for row in rows(prose(ROOT / "docs/glossary.md"))][1:]
    assert words == sorted(words, key=str.lower) and len(words) == len(set(words))


def test_the_signature_of_the_public_functions_is_the_documented_one() -> None:
    text = (REFERENCE / "signals-and-api.md").read_text()
    for function in (celery_sticky.slot_for, celery_sticky.queue_for):
        parts = []
        for parameter in inspect.signature(function).parameters.values():
            given = parameter.default
            shown = f'"{given}"' if isinstance(given, str) else given
            parts.append(parameter.name if given is parameter.empty else f"{parameter.name}={shown}")
        assert f"`celery_sticky.{function.__name__}({', '.join(parts)})`" in text
