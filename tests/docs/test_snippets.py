"""What the pages tell people to write does what the pages say."""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery import current_app
from celery._state import _set_current_app
from celery.bin.celery import celery
from harness.app import AppConfig, make_app
from harness.pages import PAGES, ROOT, anchors, blocks, commands, links, name_of

BROKER = "redis://localhost:6379/0"
"""The broker that the pages name; their code runs against that of the tests."""


def having(*languages: str) -> list[Any]:
    return [pytest.param(page, id=name_of(page)) for page in PAGES if blocks(page, *languages)]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, with the current app and the environment as they were before."""
    before = current_app._get_current_object()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", dict(**{k: v for k, v in __import__("os").environ.items()}))
    yield
    _set_current_app(before)


@pytest.mark.parametrize("page", having("python", "pycon"))
def test_the_python_of_a_page_runs(page: Path, redis_url: str, apart: None, capsys: pytest.CaptureFixture[str]) -> None:
    if name_of(page) == "docs/how-to/django.md":
        pytest.importorskip("django", reason="the Django page needs Django")
    namespace: dict[str, Any] = {"__name__": "shop"}
    for block in blocks(page, "python", "pycon"):
        text = block.text.replace(BROKER, redis_url)
        if block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(text, namespace, page.name, str(page), block.line - 1)
            failed = doctest.DocTestRunner().run(test).failed
            assert not failed, capsys.readouterr().out
        else:
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), namespace)
