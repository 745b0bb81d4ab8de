"""What the pages tell people to write and to type does what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from celery.bin.celery import celery
from harness.app import AppConfig, make_app
from harness.page_run import BROKER
from harness.pages import PAGES, ROOT, anchors, blocks, commands, links, name_of

from celery_sticky import queue_for

DJANGO = ROOT / "docs/how-to/django.md"
MEMORY = ROOT / "docs/how-to/test-without-a-server.md"
DRIVER = ROOT / "docs/how-to/write-a-driver.md"
OF_FILES = (DJANGO, MEMORY, DRIVER)
"""Pages whose blocks are files: the first line of each names it."""


def params(pages: list[Path]) -> list[Any]:
    return [pytest.param(page, id=name_of(page)) for page in pages]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, where it also finds our packages."""
    paths = os.pathsep.join((str(folder), str(ROOT / "tests"), str(ROOT)))
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


RUN = [page for page in PAGES if page not in OF_FILES and blocks(page, "python", "pycon")]


@pytest.mark.parametrize("page", params(RUN))
def test_the_python_of_a_page_runs(page: Path, redis_url: str, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "harness.page_run", str(page), redis_url)
    assert done.returncode == 0, done.stdout + done.stderr
    for promised in re.findall(r"print\(error\)\s+# (.*)", "".join(block.text for block in blocks(page, "python"))):
        pattern = ".*".join(re.escape(part.strip()) for part in promised.split("…"))
        assert re.search(pattern, done.stdout), f"the page says {promised!r}, it printed:\n{done.stdout}"


def test_other_producers_find_the_same_queue(redis_url: str, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "harness.page_run", str(ROOT / "docs/how-to/other-producers.md"), redis_url)
    assert done.returncode == 0, done.stdout + done.stderr
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(queue_for(7)) == 2
        assert client.llen(queue_for("c-1", keyspace="orders")) == 1


def test_the_django_page_makes_a_project_that_works(tmp_path: Path) -> None:
    pytest.importorskip("django")
    for name, text in files_of(DJANGO).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).parent.joinpath("__init__.py").touch()
        (tmp_path / name).write_text(text)
    with (tmp_path / "proj/settings.py").open("a") as settings:
        settings.write("INSTALLED_APPS = ['shop']\nSECRET_KEY = 'for a test'\n")
    asked = (
        "from proj.celery import app, sticky; app.loader.import_default_modules(); "
        "print(sorted(sticky.tasks.all()), sticky.settings.slots_of('orders'), sticky.settings.lease_ttl)"
    )
    done = python(tmp_path, "-c", asked)
    assert done.stdout == "['shop.tasks.charge', 'shop.tasks.sync'] 128 15.0\n", done.stderr

    with (tmp_path / "proj/settings.py").open("a") as settings:
        settings.write("CELERY_STICKY_SLOT = 7\n")
    done = python(tmp_path, "-c", asked)
    assert "did you mean 'sticky_slots'" in done.stderr


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_the_tests_of_the_page_on_memory_pass(tmp_path: Path, pool: str) -> None:
    for name, text in files_of(MEMORY).items():
        (tmp_path / name).write_text(text.replace('pool="threads"', f'pool="{pool}"'))
    done = python(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path))
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_on_drivers_shows_the_package_that_is_tested() -> None:
    package = ROOT / "tests/driver_package"
    for name, text in files_of(DRIVER).items():
        if name == "test_toybroker.py":
            assert text.strip() in (ROOT / "tests/contract/test_driver_package.py").read_text()
        else:
            assert text == (package / name).read_text(), name
    (entry_points,) = blocks(DRIVER, "ini")
    assert entry_points.text == (package / "toybroker-1.0.dist-info/entry_points.txt").read_text()


def files_of(page: Path) -> dict[str, str]:
    """Return the files of a page by name: the first line of a block names its file, and belongs to the page."""
    parts = (block.text.partition("\n") for block in blocks(page, "python"))
    return {head.removeprefix("# "): text for head, _, text in parts}


@pytest.mark.parametrize("page", params([page for page in PAGES if list(commands(page))]))
def test_the_commands_of_a_page_are_known(page: Path, tmp_path: Path) -> None:
    app = make_app(AppConfig(broker=BROKER, history=tmp_path / "history.jsonl"))
    for line, words in commands(page):
        try:
            check(words, app, page)
        except (click.ClickException, AssertionError) as error:
            raise AssertionError(f"{name_of(page)}:{line}: {' '.join(words)}: {error}") from error
    app.close()


def check(words: list[str], app: Any, page: Path) -> None:
    """Look whether a command would be understood; nothing is run."""
    match words:
        case ["celery", "-A", _, *rest] | ["celery", *rest]:
            check_celery(celery, rest, app)
        case ["make", target] | ["make", target, "DEMO=sql"]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), "no such target"
        case ["python", script]:
            assert (page.parent / script).exists(), "no such file"
        case ["pip", "install", package]:
            extra = re.fullmatch(r"celery-sticky(?:\[(\w+)\])?", package)
            assert extra, "another package"
            assert extra[1] is None or f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text(), "no such extra"
        case _:
            raise AssertionError("a kind of command that no test knows")


def check_celery(command: click.Command, words: list[str], app: Any) -> None:
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="celery")
        name, found, rest = command.resolve_command(context, words)
        assert found is not None, f"no command {name}"
        check_celery(found, rest, app)
        return
    own = command.params + (list(app.user_options["worker"]) if command.name == "worker" else [])
    whole = click.Command(command.name, params=own)
    context = click.Context(whole)
    values, left, _ = whole.make_parser(context).parse_args(list(words))
    assert not left, f"left over: {left}"
    for param in own:
        if isinstance(param, click.Argument) and param.required:
            assert isinstance(values.get(str(param.name)), str), f"{param.human_readable_name} is missing"
        elif isinstance(param.type, click.Choice) and str(param.name) in values:
            assert values[str(param.name)] in param.type.choices, f"{param.opts[0]} has no such choice"


@pytest.mark.parametrize("page", params([page for page in PAGES if links(page)]))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link} has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, new = set[Path](), {ROOT / "README.md"}
    while new:
        page = new.pop()
        seen.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        new |= {target for target in targets if target.suffix == ".md"} - seen
    assert {name_of(page) for page in PAGES} <= {name_of(page) for page in seen}


@pytest.mark.parametrize("page", params(sorted((ROOT / "docs").rglob("*.md"))))
def test_a_page_is_not_too_long(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 210
